// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

var (
	helpFlag = regexp.MustCompile(`(?m)^ +(?:-[a-z], )?(--[a-z-]+)`)
	codeFlag = regexp.MustCompile("`(--[a-z-]+)")
)

// flagsIn returns the flags of a text, sorted, without four flags that the reference does not name in each table.
// Every command has --help, and --version, --json and --root are named once for all commands.
func flagsIn(form *regexp.Regexp, text string) (flags []string) {
	for _, m := range form.FindAllStringSubmatch(text, -1) {
		if !slices.Contains([]string{"--help", "--json", "--root", "--version"}, m[1]) {
			flags = append(flags, m[1])
		}
	}
	slices.Sort(flags)
	return slices.Compact(flags)
}

// part is the section of a document below a heading.
func part(t *testing.T, document, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(document, "\n## "+heading+"\n")
	if !found {
		t.Fatalf("there is no section %s", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// rows are the first cells of a section's tables.
func rows(section string) string {
	return strings.Join(regexp.MustCompile("(?m)^\\| `[^|]*\\|").FindAllString(section, -1), "\n")
}

// docs/reference.md has each command with each of its flags, and no other.
func TestTheReferenceIsWhole(t *testing.T) {
	m := newManual(t)
	document := e2e.Read(t, "../../../docs/reference.md")
	for _, program := range []string{"mpirun-wrap", "mps-tune"} {
		shown, real := flagsIn(codeFlag, rows(part(t, document, program))), flagsIn(helpFlag, m.help(program))
		if len(real) < 5 || !slices.Equal(shown, real) {
			t.Errorf("%s: docs/reference.md has %q, the program has %q", program, shown, real)
		}
	}
	known := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(mpsctl [a-z ]+)` \\| (.*?) \\|").FindAllStringSubmatch(part(t, document, "mpsctl"), -1) {
		known[row[1]] = row[2]
	}
	for _, line := range m.leaves([]string{"mpsctl"}) {
		command := strings.Join(line, " ")
		cell, found := known[command]
		own, _, _ := strings.Cut(m.help(line...), "\nGlobal Flags:")
		_, own, _ = strings.Cut(own, "\nFlags:\n")
		if shown, real := flagsIn(codeFlag, cell), flagsIn(helpFlag, own); !found || !slices.Equal(shown, real) {
			t.Errorf("%s: docs/reference.md has %q, the program has %q", command, shown, real)
		}
		delete(known, command)
	}
	for command := range known {
		t.Errorf("docs/reference.md has %s, and mpsctl does not", command)
	}
}

// leaves are the commands that have no command below them.
func (m manual) leaves(line []string) (all [][]string) {
	names := m.commands(line)
	for _, name := range names {
		if name != "help" {
			all = append(all, m.leaves(append(slices.Clone(line), name))...)
		}
	}
	if len(names) == 0 {
		return [][]string{line}
	}
	return all
}
