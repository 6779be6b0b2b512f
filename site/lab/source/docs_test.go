// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// fence is a fenced block of a document. The first word after the fence is its language. After "text", a second word
// names the command of mpsctl that prints this output. Package policyfile checks the blocks of HCL.
type fence struct {
	path, language, of, content string
}

var fenceForm = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")

func documents(t *testing.T) (paths []string) {
	t.Helper()
	paths, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(paths) < 5 {
		t.Fatalf("documents %q, %v", paths, err)
	}
	return append(paths, "../../../README.md")
}

func fences(t *testing.T) (all []fence) {
	t.Helper()
	for _, path := range documents(t) {
		for _, m := range fenceForm.FindAllStringSubmatch(e2e.Read(t, path), -1) {
			language, of, _ := strings.Cut(m[1], " ")
			all = append(all, fence{filepath.Base(path), language, of, m[2]})
		}
	}
	return all
}

// Every block of the documents names its language, and is checked as that language.
func TestTheDocumentsBlocks(t *testing.T) {
	m := newManual(t)
	found := map[string]int{}
	for _, f := range fences(t) {
		found[f.language]++
		switch f.language {
		case "sh":
			m.script(f)
		case "conf":
			m.conf(f)
		case "text":
			m.output(f)
		case "json":
			m.summary(f)
		case "yaml":
			if f.of != "prometheus" { // TestTheRuleThatDropsJobs of cmd/mpsctl reads that one
				t.Errorf("%s: no check for YAML of %q\n%s", f.path, f.of, f.content)
			}
		case "hcl":
		case "python", "groovy": // of workflow engines: recipes_workflow_test.go of cmd/e2e/slurm reads them
		default:
			t.Errorf("%s: no check for a block of language %q: write sh, conf, text, json, yaml, hcl, python or groovy after the fence\n%s", f.path, f.language, f.content)
		}
	}
	for language, minimum := range map[string]int{"sh": 6, "conf": 2, "text": 2, "json": 1, "yaml": 1, "hcl": 3} {
		if found[language] < minimum {
			t.Errorf("only %d blocks of %s found", found[language], language)
		}
	}
}

var inlineForm = regexp.MustCompile("`([^`\n]+)`")

// Every command of ours in a sentence of the documents exists.
func TestTheDocumentsCommands(t *testing.T) {
	m := newManual(t)
	found := 0
	for _, path := range documents(t) {
		prose := fenceForm.ReplaceAllString(e2e.Read(t, path), "")
		for _, span := range inlineForm.FindAllStringSubmatch(prose, -1) {
			if word, _, spaced := strings.Cut(span[1], " "); spaced && ours(word) {
				found++
				m.line(filepath.Base(path), alternatives.ReplaceAllString(span[1], "$1"))
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d commands found", found)
	}
}

// alternatives are "check|fmt|test" in a sentence; the first is tried.
var alternatives = regexp.MustCompile(`(\w+)(\|\w+)+`)

// A command that is wrong is found.
func TestAWrongCommandIsFound(t *testing.T) {
	m := newManual(t)
	for line, wrong := range map[string]bool{
		"for i in 1 2; do mpirun-wrap --slots=8 ./m & done; wait": false, "for i in 1 2; do mpirun-wrap --slot=8 ./m & done": true,
		"mpsctl status --no-queries": false, "mpsctl status --watch": true, "mpsctl statuss": true, "mpsctl policy check": false, "mpsctl policy": true,
		"mpsctl policy chek": true, "mpsctl --json audit": false, "srun -n2 mpirun-wrap --share=even ./app --bogus": false,
		"srun mpirun-wrap --shares=even ./app": true, "srunn -n2 ./app": true, "make packages": false, "make package": true,
		"mps-tune --repeats 8 -- ./app --bogus": false, "mps-tune --repeat 8 -- ./app": true, "mpsctl tune -- ./app": true,
		`sbatch -n8 --wrap "srun mpirun-wrap --bogus ./app"`: true, "VAR=1 mpsctl status --json && mpsctl bogus": true,
	} {
		if got := m.wrong(line); (got != "") != wrong {
			t.Errorf("%s: found %q", line, got)
		}
	}
}

// manual knows the commands and flags of our programs, from their help.
type manual struct {
	e2e.Node
	helps map[string]string
}

func newManual(t *testing.T) manual {
	return manual{e2e.NewNode(t, "", node.H200), map[string]string{}}
}

// help is what a program or one of its commands prints for --help.
func (m manual) help(line ...string) string {
	m.T.Helper()
	key := strings.Join(line, " ")
	if m.helps[key] == "" {
		out, err := exec.CommandContext(m.Ctx, filepath.Join(m.Bin, line[0]), append(slices.Clone(line[1:]), "--help")...).Output()
		if err != nil {
			m.T.Fatalf("%s --help: %v", key, err)
		}
		m.helps[key] = string(out)
	}
	return m.helps[key]
}

func (m manual) script(f fence) {
	m.T.Helper()
	check := exec.CommandContext(m.Ctx, "bash", "-n")
	check.Stdin = strings.NewReader(f.content)
	if said, err := check.CombinedOutput(); err != nil {
		m.T.Errorf("%s: the shell cannot parse it: %v: %s\n%s", f.path, err, said, f.content)
	}
	for line := range strings.Lines(f.content) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
			m.line(f.path, line)
		}
	}
}

// The recipes of site/pkg/places call our programs, and make, as these can be called.
func TestTheRecipesCommands(t *testing.T) {
	m := newManual(t)
	for path, form := range map[string]string{
		"ansible/roles/slurm_mps/tasks/main.yml": `(?m)cmd: (.*)$`,
		"easybuild/slurm-mps.eb":                 `'((?:make|[a-z-]+ --).*?)'`,
		"conda/meta.yaml":                        `(?m)^    - ((?:make |[a-z-]+ --).*)$`,
		"lmod/slurm-mps.lua":                     `\[\[(srun .*) runs `,
	} {
		called := regexp.MustCompile(form).FindAllStringSubmatch(e2e.Read(t, "../../pkg/places/"+path), -1)
		if len(called) == 0 {
			t.Errorf("%s calls nothing", path)
		}
		for _, call := range called {
			m.line(path, call[1])
		}
	}
}

func (m manual) line(path, line string) {
	m.T.Helper()
	if wrong := m.wrong(line); wrong != "" {
		m.T.Errorf("%s: %s: %s", path, strings.TrimSpace(line), wrong)
	}
}

// others are the programs of other projects that the documents may name: Slurm's, the launchers', and an admin's
// tools.
var others = []string{"sbatch", "srun", "salloc", "scontrol", "scancel", "squeue",
	"sinfo", "sbcast", "mpirun", "mpiexec", "apptainer", "podman", "torchrun", "snakemake",
	"make", "install", "apt-get", "dnf", "dpkg", "systemctl", "journalctl", "clush", "ln", "cp", "sed", "grep", "jq", "export", "go", "for", "done", "wait", "swait", "test", "parallel", "xargs", "echo", "ls", "printf", "cd",
	"mkdir", "exec", "trap", "env"}

// verifiers are the programs with which a stranger verifies a release.
var verifiers = []string{"ssh-keygen", "sha256sum", "gh"}

func ours(word string) bool {
	return slices.Contains(testnode.Programs, filepath.Base(word)) && !strings.HasSuffix(word, "/")
}

// wrong returns what is wrong with a line of a shell script, "" for nothing.
func (m manual) wrong(line string) string {
	m.T.Helper()
	for _, command := range regexp.MustCompile(`&&|\|\||[|;]`).Split(line, -1) {
		words := strings.Fields(strings.NewReplacer(`"`, " ", "'", " ").Replace(command))
		for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
			words = words[1:]
		}
		if len(words) > 0 && words[0] == "do" {
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		if !ours(words[0]) && !slices.Contains(others, words[0]) && !slices.Contains(verifiers, words[0]) {
			return "there is no program " + words[0] + " among ours and those that the documents may name"
		}
		if wrong := m.target(words); wrong != "" {
			return wrong
		}
		for i, word := range words {
			if !ours(word) || i > 0 && (words[0] == "install" || words[0] == "ln") {
				continue
			}
			if wrong := m.call(filepath.Base(word), words[i+1:]); wrong != "" {
				return wrong
			}
		}
	}
	return ""
}

// target returns what is wrong with a call of make.
func (m manual) target(words []string) string {
	if words[0] != "make" {
		return ""
	}
	for _, word := range words[1:] {
		if !strings.Contains(word, "=") && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(word)+`:`).MatchString(e2e.Read(m.T, "../../../Makefile")) {
			return "the Makefile has no target " + word
		}
	}
	return ""
}

// call returns what is wrong with a call of one of our programs. mpirun-wrap has flags before its program, and mpsctl
// has commands.
func (m manual) call(program string, words []string) string {
	line := []string{program}
	for _, word := range words {
		switch {
		case strings.HasPrefix(word, ">") || strings.HasPrefix(word, "#") || word == "--":
			return m.whole(line)
		case strings.HasPrefix(word, "-"):
			flag, _, _ := strings.Cut(strings.TrimRight(word, ",:."), "=")
			if !regexp.MustCompile(`(^|[\s,;])` + regexp.QuoteMeta(flag) + `\b`).MatchString(m.help(line...)) {
				return strings.Join(line, " ") + " has no flag " + flag
			}
		case program == "mpirun-wrap":
			return ""
		case m.below(line, word):
			line = append(line, word)
		case len(m.commands(line)) > 0 && len(line) == 1:
			return "mpsctl has no command " + word
		}
	}
	return m.whole(line)
}

// whole returns a sentence if a command is missing at the end of a line.
func (m manual) whole(line []string) string {
	if line[0] == "mpsctl" && len(line) > 1 && len(m.commands(line)) > 0 {
		return strings.Join(line, " ") + " needs one of " + strings.Join(m.commands(line), ", ")
	}
	return ""
}

func (m manual) below(line []string, word string) bool {
	return slices.Contains(m.commands(line), word)
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

// conf compares lines for Slurm's files with the snippets that are installed. The tests' clusters use the same lines.
// Each setting of the document must be in a snippet.
func (m manual) conf(f fence) {
	m.T.Helper()
	installed := strings.Fields(e2e.Read(m.T, "../../../site/etc/slurm.conf") + e2e.Read(m.T, "../../../site/etc/gres.conf"))
	for _, word := range strings.Fields(f.content) {
		if word != "..." && !slices.Contains(installed, word) {
			m.T.Errorf("%s: %s is in neither slurm.conf nor gres.conf of site/etc", f.path, word)
		}
	}
}

// output compares a shown output with the program's. Every word of it that is neither a name nor a number must be in
// the sources or in the goldens of their tests.
func (m manual) output(f fence) {
	m.T.Helper()
	if f.of == "" {
		if strings.Contains(f.content, "mpsctl") || !strings.ContainsAny(f.content, "─►") {
			m.T.Errorf("%s: the text is no picture: write after the fence which command prints it\n%s", f.path, f.content)
		}
		return
	}
	source := m.sources(f.of)
	pieces := 0
	for line := range strings.Lines(f.content) {
		for _, piece := range m.pieces(line) {
			pieces++
			if !strings.Contains(source, piece) && !begins(source, piece) {
				m.T.Errorf("%s: mpsctl %s does not print %q", f.path, f.of, piece)
			}
		}
	}
	if pieces < 3 {
		m.T.Errorf("%s: in the output of mpsctl %s only %d pieces are checked", f.path, f.of, pieces)
	}
}

// pieces are the parts of a line between the words that differ from node to node.
func (m manual) pieces(line string) (all []string) {
	varies := regexp.MustCompile(`  +|[^\s]*[0-9/][^\s]*|[:,]\s|[█░]+|\.\.\.`)
	for _, piece := range varies.Split(strings.TrimSpace(line), -1) {
		if piece = strings.TrimSpace(piece); len(piece) > 3 {
			all = append(all, piece)
		}
	}
	return all
}

var sentence = regexp.MustCompile(`"([a-z][^"%]{8,} )"`)

// begins reports whether a piece begins with the text that a source prints before a variable part.
func begins(source, piece string) bool {
	return slices.ContainsFunc(sentence.FindAllStringSubmatch(source, -1), func(m []string) bool { return strings.HasPrefix(piece, m[1]) })
}

func (m manual) sources(command string) string {
	m.T.Helper()
	var all strings.Builder
	patterns := []string{"../../../cmd/mpsctl/*.go", "../../../cmd/mpsctl/testdata/" + command + "/*.txt", "../../../prolog/frame/*.go", "../../../policy/plan/*.go", "../../../site/state/*.go", "../../../site/doctor/*.go", "../../../site/slurm/steps/*.go", "../../../site/paths.go"}
	for _, pattern := range patterns {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				all.WriteString(e2e.Read(m.T, file))
			}
		}
	}
	if all.Len() < 1000 {
		m.T.Fatalf("no sources of mpsctl %s", command)
	}
	return all.String()
}

// summary compares the shown summary with a real one. Both have the same names in the same order, with values of the
// same kinds.
func (m manual) summary(f fence) {
	m.T.Helper()
	m.Must(0, m.Job(7, "0"), "prolog")
	m.Until("report", func() bool { // without it, the summary has no use of GPUs
		_, err := os.Stat(filepath.Join(m.Paths().Run(), "jobs/7/report.json"))
		return err == nil
	})
	m.Must(0, m.Job(7, "0"), "epilog")
	for line := range strings.Lines(m.Log()) {
		if strings.Contains(line, `"step":"summary"`) {
			if shown, real := kindsOf(m.T, f.content), kindsOf(m.T, line); !slices.Equal(shown, real) {
				m.T.Errorf("%s: shown   %q\nprinted %q", f.path, shown, real)
			}
			return
		}
	}
	m.T.Errorf("the epilog prints no summary:\n%s", m.Log())
}

// kindsOf is the names and kinds of an object's values, in order.
func kindsOf(t *testing.T, object string) (names []string) {
	t.Helper()
	d := json.NewDecoder(bytes.NewBufferString(object))
	for {
		token, err := d.Token()
		if err != nil {
			return names
		}
		switch v := token.(type) {
		case string:
			if len(names)%2 == 0 {
				names = append(names, v)
			} else {
				names = append(names, "text")
			}
		case float64:
			names = append(names, "number")
		case bool:
			names = append(names, "boolean")
		}
	}
}

// Every clause of the contract is cited by a test, as "Contract: R4, R5", and every citation names a clause.
func TestEveryClauseOfTheContractIsTested(t *testing.T) {
	clauses := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\* \*\*([A-Z][0-9]+)\*\* `).FindAllStringSubmatch(e2e.Read(t, "../../../docs/contract.md"), -1) {
		clauses[m[1]] = false
	}
	if len(clauses) < 20 {
		t.Fatalf("only %d clauses found: want 20 or more", len(clauses))
	}
	cites := regexp.MustCompile(`(?m)^// Contract: (.*)\n(?:// .*\n)*func Test`)
	err := filepath.WalkDir("../../..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != "../../.." {
			return fs.SkipDir // the folder of built programs
		}
		if err != nil {
			return err
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		for _, m := range cites.FindAllStringSubmatch(e2e.Read(t, path), -1) {
			for clause := range strings.SplitSeq(m[1], ", ") {
				if _, known := clauses[clause]; !known {
					t.Errorf("%s cites %q, which is no clause of docs/contract.md", path, clause)
				}
				clauses[clause] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for clause, cited := range clauses {
		if !cited {
			t.Errorf("no test cites clause %s of docs/contract.md", clause)
		}
	}
}

// No program of ours tells an admin to kill a daemon of MPS before it was asked to quit.
func TestNoAdviceToKillFirst(t *testing.T) {
	seen := 0
	for _, root := range []string{"../../../cmd", "../../../epilog", "../../../prolog", "../../../mpirun-wrap", "../../../site/mps", "../../../site/etc", "../../../site/state", "../../../site/doctor"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/testdata/") {
				return err
			}
			for line := range strings.Lines(e2e.Read(t, path)) {
				if strings.Contains(line, "kill -9") && !strings.HasPrefix(strings.TrimSpace(line), "//") {
					seen++
					if !strings.Contains(line, "after)") {
						t.Errorf("%s: %s", path, line)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen != 1 {
		t.Errorf("%d lines advise to kill: want one, after quit", seen)
	}
}

// A statement about another product ages. Each one of docs/comparison.md has the year of its source.
func TestRivalsHaveADate(t *testing.T) {
	page := e2e.Read(t, "../../../docs/comparison.md")
	rivals := regexp.MustCompile(`(?m)^\* .*$`).FindAllString(part(t, page, "Elsewhere"), -1)
	if len(rivals) < 5 {
		t.Errorf("only %d rivals found", len(rivals))
	}
	for _, rival := range rivals {
		if !regexp.MustCompile(`\b20[2-9][0-9]\b`).MatchString(rival) {
			t.Errorf("docs/comparison.md has no year: %s", rival)
		}
	}
	for _, edition := range []string{`Slurm [0-9.]+ \(\w+ 20\d\d\)`, `release [0-9]+ of \d+ \w+ 20\d\d`, `LSF [0-9.]+`} {
		if !regexp.MustCompile(edition).MatchString(page) {
			t.Errorf("docs/comparison.md does not name the edition %q", edition)
		}
	}
}
