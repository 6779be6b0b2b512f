// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// columns is the maximum width of the text. A longer line of a program is broken at blanks.
const columns = 80

// screen prints the acts for a reader.
type screen struct {
	out  io.Writer
	bold bool
	term string // TERM
}

// newScreen returns a screen that prints titles in bold if out is a terminal that supports it.
func newScreen(out *os.File, env func(string) string) screen {
	term := env("TERM")
	return screen{out, osfile.IsTerminal(out) && env("NO_COLOR") == "" && term != "dumb", term}
}

// title prints the title of an act.
func (s screen) title(text string) {
	rule := strings.Repeat("-", columns)
	if s.bold {
		text = "\x1b[1m" + text + "\x1b[0m"
	}
	fmt.Fprintf(s.out, "\n%s\n%s\n", rule, text)
}

// text prints our own sentences.
func (s screen) text(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprint(s.out, wrap(strings.TrimRight(line, "\n"), ""))
	}
}

// command prints a command line as the user typed it.
func (s screen) command(user, line string) {
	prompt := user + "$ "
	if user == "root" {
		prompt = "root# "
	}
	if s.bold {
		line = "\x1b[1m" + line + "\x1b[0m"
	}
	fmt.Fprintf(s.out, "\n%s%s\n", prompt, line)
}

// output prints what a program has printed.
func (s screen) output(text string) {
	for line := range strings.Lines(shortUUIDs(text)) {
		fmt.Fprint(s.out, wrap(strings.TrimRight(line, "\n"), "    "))
	}
}

var uuidForm = regexp.MustCompile(`(GPU-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// shortUUIDs shortens each UUID to its first eight digits.
func shortUUIDs(text string) string { return uuidForm.ReplaceAllString(text, "$1") }

// wrap breaks a line at blanks, so that no line is wider than columns. All lines after the first are indented.
func wrap(line, indent string) string {
	var b strings.Builder
	for cells(line) > columns {
		at := lastBlank(line, columns)
		if at <= len(indent) {
			break // one word is wider than columns
		}
		fmt.Fprintln(&b, strings.TrimRight(line[:at], " "))
		line = indent + strings.TrimLeft(line[at:], " ")
	}
	fmt.Fprintln(&b, line)
	return b.String()
}

func cells(line string) int { return utf8.RuneCountInString(line) }

// lastBlank returns the index of the last blank that has at most limit characters before it, or 0.
func lastBlank(line string, limit int) (at int) {
	n := 0
	for i, r := range line {
		if r == ' ' {
			at = i
		}
		if n++; n > limit {
			break
		}
	}
	return at
}
