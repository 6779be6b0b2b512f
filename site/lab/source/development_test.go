// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// How tests, scripts and the Makefile read a variable of the environment or of make.
var (
	readByGo    = regexp.MustCompile(`\b(?:Getenv|LookupEnv|Number|Rounds|endsPattern)\((?:t, )?"([A-Z][A-Z0-9_]*)"`)
	readByShell = regexp.MustCompile(`\$\{([A-Z][A-Z0-9_]*):?[-?]`)
	readByMake  = regexp.MustCompile(`\$\(([A-Z][A-Z0-9_]*)\)`)
	setByMake   = regexp.MustCompile(`(?m)^([A-Z][A-Z0-9_]*) *:=`)
)

// notForPeople are variables that are no setting of a test. Some are variables of programs in general. Some are read
// by simulated programs as by the real programs. The others are for a process that a test or a script starts.
var notForPeople = []string{
	"PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY",
	"GUARD_TEST_OPENS", "LAB_TEST_CHILD", "LINES_SHOWN",
	"MAKE", "CURDIR", "MAKEFILE_LIST",
}

// testVariables are the variables that the source reads, each with a file that reads it.
func testVariables(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	add := func(form *regexp.Regexp, file, text string) {
		for _, m := range form.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(notForPeople, m[1]) {
				found[m[1]] = file
			}
		}
	}
	list := []string{"-C", "../../..", "ls-files", "*.go", "site/lab/*.sh", "site/pkg/*.sh", "site/spank/*.sh"}
	files, err := exec.Command("git", list...).Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	for file := range strings.Lines(string(files)) {
		file = strings.TrimSpace(file)
		tools := slices.ContainsFunc([]string{"site/lab/", "site/sim/"}, func(folder string) bool {
			return strings.HasPrefix(file, folder)
		})
		switch text := e2e.Read(t, filepath.Join("../../..", file)); {
		case strings.Contains(file, "testdata/") || strings.HasPrefix(file, "site/lab/bench/peers/"):
		case strings.HasSuffix(file, ".sh"):
			add(readByShell, file, text)
		case tools || strings.HasSuffix(file, "_test.go"):
			add(readByGo, file, text)
		}
	}
	makefile := e2e.Read(t, "../../../Makefile")
	add(readByMake, "Makefile", makefile)
	for _, m := range setByMake.FindAllStringSubmatch(makefile, -1) {
		if found[m[1]] == "Makefile" && m[1] != "PREFIX" {
			delete(found, m[1])
		}
	}
	return found
}

// site/lab/README.md has each variable of the tests in its table, and no other.
func TestTheLabsVariables(t *testing.T) {
	documented := map[string]bool{}
	row := regexp.MustCompile("(?m)^\\| `([A-Z][A-Z0-9_]*)` \\|")
	for _, m := range row.FindAllStringSubmatch(e2e.Read(t, "../../../site/lab/README.md"), -1) {
		if documented[m[1]] {
			t.Errorf("site/lab/README.md has %s twice", m[1])
		}
		documented[m[1]] = true
	}
	found := testVariables(t)
	for _, known := range []string{
		"SWEEP", "REQUIRE_LAB", "SOAK_MINUTES", "ENDS_PARTS", "FUZZTIME", "DEBIAN_MIRROR", "DEBIAN_EXPIRED", "SUITE", "MUTANTS", "DESTDIR",
	} {
		if found[known] == "" {
			t.Errorf("the test does not see %s, which the source reads", known)
		}
	}
	for name, file := range found {
		if !documented[name] {
			t.Errorf("site/lab/README.md lacks %s, which %s reads", name, file)
		}
	}
	for name := range documented {
		if found[name] == "" {
			t.Errorf("site/lab/README.md has %s, which nothing reads", name)
		}
	}
}

// site/lab/README.md has the subject of each package of end-to-end tests, and no subject without a package.
func TestDevelopmentHasEverySubject(t *testing.T) {
	subjects := map[string]bool{}
	row := regexp.MustCompile("(?m)^\\* `cmd/e2e/([a-z]+)`: ")
	for _, m := range row.FindAllStringSubmatch(e2e.Read(t, "../../../site/lab/README.md"), -1) {
		subjects[m[1]] = false
	}
	files, err := filepath.Glob("../../../cmd/e2e/*/*_test.go")
	if err != nil || len(files) < 40 {
		t.Fatalf("files %q, %v", files, err)
	}
	for _, file := range files {
		subject := filepath.Base(filepath.Dir(file))
		if _, known := subjects[subject]; !known {
			t.Errorf("site/lab/README.md has no subject for cmd/e2e/%s", subject)
		}
		subjects[subject] = true
	}
	for subject, exists := range subjects {
		if !exists {
			t.Errorf("site/lab/README.md has the subject %s, and there is no such package", subject)
		}
	}
}

// make help prints a line for each target of .PHONY.
func TestMakeHelp(t *testing.T) {
	out, err := exec.Command("make", "-s", "--no-print-directory", "-C", "../../..", "help").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, targets, _ := strings.Cut(e2e.Read(t, "../../../Makefile"), "\n.PHONY: ")
	targets, _, _ = strings.Cut(targets, "\n")
	var printed []string
	for line := range strings.Lines(string(out)) {
		name, what, _ := strings.Cut(line, " ")
		if printed = append(printed, name); strings.TrimSpace(what) == "" {
			t.Errorf("make help does not describe %s", name)
		}
	}
	phony := strings.Fields(targets)
	slices.Sort(phony)
	slices.Sort(printed)
	if len(phony) < 20 || !slices.Equal(phony, printed) {
		t.Errorf("make help prints %q, and .PHONY has %q", printed, phony)
	}
}

// make test-quick names end-to-end tests. go test does not complain of a name that no test has.
func TestQuickNamesTests(t *testing.T) {
	_, names, found := strings.Cut(e2e.Read(t, "../../../Makefile"), "\nQUICK := ")
	names, _, _ = strings.Cut(names, "\n")
	files, err := filepath.Glob("../../../cmd/e2e/*/*_test.go")
	if err != nil || !found {
		t.Fatalf("Makefile has QUICK: %v; files: %v", found, err)
	}
	var source strings.Builder
	for _, file := range files {
		source.WriteString(e2e.Read(t, file))
	}
	for name := range strings.SplitSeq(names, "|") {
		if !strings.Contains(source.String(), "\nfunc "+name+"(t *testing.T) {\n") {
			t.Errorf("make test-quick names %s, and there is no such test", name)
		}
	}
}
