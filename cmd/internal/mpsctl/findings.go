// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/cmd/internal/command"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/inspect"
)

// printFindings prints findings for people: kind and place, then the fault, then the repair as a line that can be
// pasted.
func printFindings(found []inspect.Finding, what string, screen command.Screen) string {
	if len(found) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", screen.Red(site.Count(len(found), what)))
	for _, f := range found {
		fmt.Fprintf(&b, "%s %s  %s\n", screen.Red("!"), screen.Bold(string(f.Kind)), f.Where)
		b.WriteString(screen.Wrap("    ", f.What))
		b.WriteString(printFix(f.Do))
	}
	return b.String()
}

// printFix prints a repair for people. Its steps are separated by semicolons. If a step is a comment, a colon and a
// command, the command stands alone on the next line, so that it can be copied.
func printFix(do string) string {
	var b strings.Builder
	for i, step := range strings.Split(do, "; ") {
		comment, command, is := strings.Cut(step, ": ")
		begin := "         "
		if i == 0 {
			begin = "    fix: "
		}
		if is {
			fmt.Fprintf(&b, "%s%s:\n             %s\n", begin, comment, command)
		} else {
			fmt.Fprintf(&b, "%s%s\n", begin, step)
		}
	}
	return b.String()
}

// printUnseen prints for people what could not be seen.
func printUnseen(unseen []string, screen command.Screen) string {
	if len(unseen) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", screen.Yellow("not seen"))
	for _, what := range unseen {
		b.WriteString(screen.Wrap("  ", what))
	}
	return b.String()
}
