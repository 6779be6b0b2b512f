// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// Text returns diagnostics with their source lines.
func Text(all []policyfile.Diagnostic, colour bool) string {
	texts := make([]string, len(all))
	for i, d := range all {
		texts[i] = long(d, colour)
	}
	return strings.Join(texts, "\n")
}

// long returns a mistake with its line, and marks the part of the line:
//
//	Error: Unusable value 99
//
//	  on policy.hcl line 5, column 19, in rule "r":
//	   5:     max_clients = 99
//	                        ^^
//
//	  max_clients: want a whole number from 1 to 60
func long(d policyfile.Diagnostic, colour bool) string {
	red, bold, plain, severity, in := "", "", "", "Error", ""
	if d.Warning {
		severity = "Warning"
	}
	if colour {
		red, bold, plain = "\x1b[31m", "\x1b[1m", "\x1b[0m"
	}
	if d.In != "" {
		in = ", in " + d.In
	}
	before, marked, after := parts(d)
	number := fmt.Sprintf("%4d: ", d.Line)
	indent := strings.Repeat(" ", len(number)+utf8.RuneCountInString(before))
	carets := strings.Repeat("^", max(1, utf8.RuneCountInString(marked)))
	return fmt.Sprintf("%s%s%s: %s%s%s\n\n  on %s line %d, column %d%s:\n%s%s\n%s%s%s%s\n\n  %s\n",
		red, severity, plain, bold, d.Summary, plain, d.File, d.Line, d.Column, in,
		number, before+marked+after, indent, red, carets, plain, d.Detail)
}

// parts divides the line for a terminal: the part of the mistake, and the text before and behind it.
func parts(d policyfile.Diagnostic) (before, marked, after string) {
	line := []rune(d.Source)
	start, end := min(d.Column-1, len(line)), min(d.EndColumn-1, len(line))
	if d.EndLine > d.Line {
		end = len(line)
	}
	end = max(start, end)
	shown := func(part []rune) string { return words.Printable(strings.ReplaceAll(string(part), "\t", "    ")) }
	return shown(line[:start]), shown(line[start:end]), shown(line[end:])
}
