// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/cmd/internal/ctl"
)

// Say is findings for people: a line each with the kind and where, then what, then what to do, on a line that can be pasted.
func Say(found []Finding, what string, screen ctl.Screen) string {
	if len(found) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", screen.Bad(ctl.Count(len(found), what)))
	for _, f := range found {
		fmt.Fprintf(&b, "%s %s  %s\n", screen.Bad("!"), screen.Strong(string(f.Kind)), f.Where)
		b.WriteString(screen.Fold("    ", f.What))
		fmt.Fprintf(&b, "    do: %s\n", f.Do)
	}
	return b.String()
}

// SayUnseen is what could not be seen, for people.
func SayUnseen(unseen []string, screen ctl.Screen) string {
	if len(unseen) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", screen.Odd("not seen"))
	for _, what := range unseen {
		b.WriteString(screen.Fold("  ", what))
	}
	return b.String()
}
