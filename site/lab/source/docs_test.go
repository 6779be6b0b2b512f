// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

var (
	fenceForm  = regexp.MustCompile("(?ms)^```([^ \n]*)([^\n]*)\n(.*?)^```$")
	inlineForm = regexp.MustCompile("`([^`\n]+)`")
	// alternatives are "check|fmt|test" in a sentence; the first is tried.
	alternatives = regexp.MustCompile(`(\w+)(\|\w+)+`)
	// separators stand between two commands of a line.
	separators = regexp.MustCompile(`&&|\|\||[|;]`)
	variable   = regexp.MustCompile(`^[A-Z_]+=`)
	helpFlag   = regexp.MustCompile(`(?m)^ +(?:-[a-z], )?(--[a-z-]+)`)
	codeFlag   = regexp.MustCompile("`(--[a-z-]+)")
)

// documents are the pages, and README.md.
func documents(t *testing.T) (paths []string) {
	t.Helper()
	paths, err := filepath.Glob("../../../docs/*.md")
	must.Have(t, err == nil && len(paths) >= 5, "documents %q, %v", paths, err)
	return append(paths, "../../../README.md")
}

// Each block of the documents names its language. The shell parses the scripts, our commands in them exist, and Slurm's files
// in them have the lines that are installed. Tests beside the code read the blocks of HCL, YAML, Python and Groovy.
func TestTheDocumentsBlocks(t *testing.T) {
	m := newManual(t)
	installed := strings.Fields(e2e.Read(t, "../../../site/etc/slurm.conf") + e2e.Read(t, "../../../site/etc/gres.conf"))
	found := map[string]int{}
	for _, path := range documents(t) {
		for _, f := range fenceForm.FindAllStringSubmatch(e2e.Read(t, path), -1) {
			language, content := f[1], f[3]
			found[language]++
			switch language {
			case "sh":
				m.script(path, content)
			case "conf":
				for _, word := range strings.Fields(content) {
					must.Hold(t, word == "..." || slices.Contains(installed, word),
						"%s: %s is in neither slurm.conf nor gres.conf of site/etc", path, word)
				}
			case "text", "json", "yaml", "hcl", "python", "groovy":
			default:
				t.Errorf("%s: write the language of this block after the fence:\n%s", path, content)
			}
		}
	}
	must.Hold(t, found["sh"] >= 6 && found["conf"] >= 2, "only the blocks %v are found", found)
}

// Each command of ours in a sentence of the documents exists.
func TestTheDocumentsCommands(t *testing.T) {
	m := newManual(t)
	found := 0
	for _, path := range documents(t) {
		prose := fenceForm.ReplaceAllString(e2e.Read(t, path), "")
		for _, span := range inlineForm.FindAllStringSubmatch(prose, -1) {
			if word, _, spaced := strings.Cut(span[1], " "); spaced && ours(word) {
				found++
				m.line(path, alternatives.ReplaceAllString(span[1], "$1"))
			}
		}
	}
	must.Hold(t, found >= 10, "only %d commands found", found)
}

// docs/reference.md has each command with each of its flags, and no other.
func TestTheReferenceIsWhole(t *testing.T) {
	m := newManual(t)
	document := e2e.Read(t, "../../../docs/reference.md")
	for _, program := range []string{"mpirun-wrap", "mps-tune"} {
		cells := regexp.MustCompile("(?m)^\\| `[^|]*\\|").FindAllString(part(t, document, program), -1)
		shown, real := flagsIn(codeFlag, strings.Join(cells, "\n")), flagsIn(helpFlag, m.help(program))
		must.Hold(t, len(real) >= 5 && slices.Equal(shown, real),
			"%s: docs/reference.md has %q, the program has %q", program, shown, real)
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
	must.Have(t, found, "there is no section %s", heading)
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// manual knows the commands and flags of our programs, from their help.
type manual struct {
	*testing.T
	bin string
}

// built builds the programs once for all tests, and helps keeps what they print.
var (
	built = sync.OnceValues(testnode.Built)
	helps = map[string]string{}
)

func newManual(t *testing.T) manual {
	t.Helper()
	folder := must.Get(built())(t)
	return manual{t, filepath.Join(folder, "bin")}
}

// help is what a program or one of its commands prints for --help.
func (m manual) help(line ...string) string {
	m.Helper()
	key := strings.Join(line, " ")
	if helps[key] == "" {
		out, err := exec.CommandContext(m.Context(), filepath.Join(m.bin, line[0]), append(slices.Clone(line[1:]), "--help")...).Output()
		if err != nil {
			m.Fatalf("%s --help: %v", key, err)
		}
		helps[key] = string(out)
	}
	return helps[key]
}

// commands are the commands that a help text lists.
func (m manual) commands(line []string) (names []string) {
	_, list, _ := strings.Cut(m.help(line...), "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		names = append(names, strings.Fields(line)[0])
	}
	return names
}

// leaves are the commands that have no command below them.
func (m manual) leaves(line []string) (all [][]string) {
	for _, name := range m.commands(line) {
		if name != "help" {
			all = append(all, m.leaves(append(slices.Clone(line), name))...)
		}
	}
	if len(all) == 0 {
		return [][]string{line}
	}
	return all
}

func (m manual) script(path, content string) {
	m.Helper()
	check := exec.CommandContext(m.Context(), "bash", "-n")
	check.Stdin = strings.NewReader(content)
	if said, err := check.CombinedOutput(); err != nil {
		m.Errorf("%s: the shell cannot parse it: %v: %s\n%s", path, err, said, content)
	}
	for line := range strings.Lines(content) {
		line, _, _ = strings.Cut(line, "#")
		m.line(path, line)
	}
}

func ours(word string) bool {
	return slices.Contains(testnode.Programs, filepath.Base(word)) && !strings.HasSuffix(word, "/")
}

// line finds what is wrong with each command of a line.
func (m manual) line(path, line string) {
	m.Helper()
	for _, command := range separators.Split(line, -1) {
		words := strings.Fields(strings.NewReplacer(`"`, " ", "'", " ").Replace(command))
		for len(words) > 0 && (variable.MatchString(words[0]) || words[0] == "do") {
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		if wrong := m.wrong(words); wrong != "" {
			m.Errorf("%s: %s: %s", path, strings.TrimSpace(line), wrong)
		}
	}
}

// wrong returns what is wrong with a command, "" for nothing.
func (m manual) wrong(words []string) string {
	switch first := words[0]; {
	case first == "make":
		for _, word := range words[1:] {
			if !strings.Contains(word, "=") && !strings.Contains(e2e.Read(m.T, "../../../Makefile"), "\n"+word+":") {
				return "the Makefile has no target " + word
			}
		}
	case first == "install" || first == "ln": // these name our programs as files
		return ""
	}
	for i, word := range words {
		if ours(word) {
			if wrong := m.call(filepath.Base(word), words[i+1:]); wrong != "" {
				return wrong
			}
		}
	}
	return ""
}

// call returns what is wrong with a call of one of our programs. mpirun-wrap has flags before its program, and mpsctl
// has commands.
func (m manual) call(program string, words []string) string {
	line := []string{program}
	for _, word := range words {
		names := m.commands(line)
		switch {
		case word == "--":
			return ""
		case strings.HasPrefix(word, "-"):
			flag, _, _ := strings.Cut(strings.TrimRight(word, ",:."), "=")
			if !regexp.MustCompile(`(^|[\s,;])` + regexp.QuoteMeta(flag) + `\b`).MatchString(m.help(line...)) {
				return strings.Join(line, " ") + " has no flag " + flag
			}
		case strings.HasPrefix(word, ">") || program == "mpirun-wrap":
			return ""
		case slices.Contains(names, word):
			line = append(line, word)
		case len(names) > 0 && len(line) == 1:
			return "mpsctl has no command " + word
		}
	}
	return ""
}
