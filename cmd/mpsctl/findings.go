// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/words"
)

func findingsText(found []state.Finding, screen command.Screen) string {
	if len(found) == 0 {
		return ""
	}
	text := "\n" + screen.Red(words.Count(len(found), "finding")) + "\n"
	for _, f := range found {
		text += findingText(f, screen)
	}
	return text
}

// findingText prints a finding for people: kind and place, then the fault, then the repair.
func findingText(f state.Finding, screen command.Screen) string {
	head := fmt.Sprintf("%s %s  %s\n", mark(f.Level, screen), screen.Bold(string(f.Kind)), f.Where)
	return head + screen.Wrap("    ", f.What) + fixText(f.Fix)
}

func mark(level state.Level, screen command.Screen) string {
	if level == state.Warning {
		return screen.Yellow("~")
	}
	return screen.Red("!")
}

// fixText prints a repair for people. Its steps are separated by semicolons. If a step is a comment, a colon and a
// command, the command stands alone on the next line, so that it can be copied.
func fixText(fix string) (text string) {
	begin := "    fix: "
	for step := range strings.SplitSeq(fix, "; ") {
		comment, line, cut := strings.Cut(step, ": ")
		if text += begin + comment; cut {
			text += ":\n             " + line
		}
		text, begin = text+"\n", "         "
	}
	return text
}

func unseenText(unseen []string, screen command.Screen) string {
	if len(unseen) == 0 {
		return ""
	}
	text := "\n" + screen.Yellow("not seen") + "\n"
	for _, part := range unseen {
		text += screen.Wrap("  ", part)
	}
	return text
}
