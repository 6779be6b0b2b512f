// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// changeRecipe is a section of docs/development.md that names the files of a change.
type changeRecipe struct {
	heading string
	example *regexp.Regexp // what the files of the change name
	// except lists files that name the example and that the next change of this sort does not touch, each with the
	// reason. A pattern of package path is possible.
	except map[string]string
}

var changeRecipes = []changeRecipe{
	{"A policy attribute", regexp.MustCompile(`\bceiling +=|["\x60]ceiling["\x60]|([Gg]rant|\bg|[Ll]imits)\.Ceiling\b`), map[string]string{
		"docs/development.md":                               "the recipe",
		"docs/decisions/032-processes-that-are-no-ranks.md": "who is bound by the limit",
		"site/etc/policy_test.hcl":                          "an example of cases",
		"site/etc/policies/*.hcl":                           "policies that happen to use it",
		"policy/divide.go":                                  "the arithmetic of SMs",
		"policy/*_test.go":                                  "grants of several attributes",
		"policy/plan/ranks_test.go":                         "a plan of several attributes",
		"policy/policyfile/testdata/*.hcl":                  "policies that happen to use it",
		"policy/policyfile/*_test.go":                       "policies that happen to use it",
		"policy/lint/*_test.go":                             "policies that happen to use it",
		"mpirun-wrap/*_test.go":                             "tickets of several attributes",
		"site/guard/gpuusage/members.go":                    "the report has each client's SMs",
		"cmd/mpsctl/*_test.go":                              "policies that happen to use it",
		"cmd/mpsctl/testdata/status/*.json":                 "status prints it",
		"site/state/*.go":                                   "status prints it",
		"site/mps/query_test.go":                            "what the daemon answers",
		"cmd/e2e/*/*_test.go":                               "policies that happen to use it",
		"prolog/*_test.go":                                  "what the daemon gets",
	}},
	{"A launcher", regexp.MustCompile(`jsrun|JSM_`), map[string]string{"docs/development.md": "the recipe"}},
	{"A release of Slurm", regexp.MustCompile(`\bforky\b|\b26\.05`), map[string]string{
		"docs/development.md": "the recipe",
		"docs/decisions/018-what-the-package-does-to-a-node.md": "a package for each release",
		"docs/decisions/040-a-step-of-one-task.md":              "what was recorded",
		"docs/decisions/042-own.md":                             "what was measured",
		"docs/decisions/043-parts-of-a-gpu.md":                  "what was recorded",
		"site/slurm/shared.go":                                  "what was recorded",
		"site/slurm/testdata/shared/README.md":                  "what was recorded",
		"docs/policy.md":                                        "a variable that a release brought",
		"docs/measurements/README.md":                           "a night's page",
		"docs/security.md":                                      "an attack that was tried",
		"cmd/e2e/hostile/README.md":                             "an attack that was tried",
		"cmd/e2e/slurm/async_test.go":                           "an option that a release brought",
		"site/lease/lease.go":                                   "a field that a release brought",
		"site/slurm/*_test.go":                                  "cases of the records",
		"site/slurm/steps/*_test.go":                            "cases of the records",
	}},
	{"A check of doctor", regexp.MustCompile(`state-on-disk`), map[string]string{"docs/development.md": "the recipe"}},
	{"A finding of status or audit", regexp.MustCompile(`memory-held|MemoryHeld`), map[string]string{
		"docs/development.md": "the recipe", "docs/security.md": "an attack that it reports"}},
	{"A flag or a command of mpsctl", regexp.MustCompile(`no-queries`), map[string]string{
		"docs/development.md": "the recipe", "site/lab/source/docs_test.go": "an example of a command"}},
	{"A flag of mpirun-wrap", regexp.MustCompile(`--ids\b|setIDs`), map[string]string{
		"docs/development.md": "the recipe", "docs/measurements/README.md": "what ran", "docs/measurements/23-h100/README.md": "what ran",
		"docs/decisions/061-numbers-and-pins.md": "why"}},
	{"An answer of the control program", regexp.MustCompile(`get_server_status`), map[string]string{
		"docs/development.md": "the recipe", "mpirun-wrap/*_test.go": "recorded answers", "mpirun-wrap/testdata/fault-window.txt": "recorded answers"}},
	{"A figure of the report", regexp.MustCompile(`(?i)\bdram\b|s\.DRAM`), map[string]string{
		"docs/development.md": "the recipe",
		"docs/*.md":           "what a figure means for users", "docs/decisions/051-figures-of-a-part.md": "a part of a GPU has none",
		"docs/pictures/play.svg": "a screen, recorded by make pictures", "docs/status.svg": "a screen",
		"cmd/mpsctl/cmd_report.go": "the help names GPUs that lack it", "cmd/mpsctl/cmd_*_test.go": "reports with values",
		"cmd/e2e/mpsctl/part_test.go": "a part of a GPU has none",
		"site/usage/judge/advice.go":  "advice depends on it", "site/usage/judge/testdata/*": "measured values", "site/lab/codes/packing.py": "compares it with GPM", "cmd/e2e/real/packing_test.go": "compares it with GPM", "site/usage/judge/ends.go": "prints the part of a GPU's remark", "site/usage/judge/*_test.go": "reports with values", "site/usage/*_test.go": "reports with values", "site/usage/page/page_test.go": "reports with values",
	}},
}

var (
	recipeRow  = regexp.MustCompile("(?m)^\\* (`.*?`): (.+)$")
	recipeFile = regexp.MustCompile("`([^`]+)`")
)

// Each file that a recipe of docs/development.md names exists, and each file that names the recipe's example is in the
// recipe or in the list of exceptions above.
func TestRecipesNameTheirFiles(t *testing.T) {
	out, err := exec.Command("git", "-C", "../../..", "ls-files").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := strings.Fields(string(out))
	_, document, _ := strings.Cut(e2e.Read(t, "../../../docs/development.md"), "\n## Add something\n")
	document, _, _ = strings.Cut(document, "\n## ")
	for _, r := range changeRecipes {
		t.Run(r.heading, func(t *testing.T) {
			_, section, found := strings.Cut(document, "\n### "+r.heading+"\n")
			section, _, _ = strings.Cut(section, "\n### ")
			var named []string
			for _, row := range recipeRow.FindAllStringSubmatch(section, -1) {
				for _, m := range recipeFile.FindAllStringSubmatch(row[1], -1) {
					named = append(named, m[1])
				}
			}
			if !found || len(named) < 4 {
				t.Fatalf("the recipe names %q", named)
			}
			for _, pattern := range named {
				if !slices.ContainsFunc(files, func(file string) bool { return matches(pattern, file) }) {
					t.Errorf("the recipe names %s, which does not exist", pattern)
				}
			}
			r.check(t, files, named)
		})
	}
}

// check compares the files that name the example with the recipe and with its exceptions.
func (r changeRecipe) check(t *testing.T, files, named []string) {
	t.Helper()
	used := map[string]bool{}
	for _, file := range files {
		if file == "site/lab/source/changes_test.go" || strings.HasSuffix(file, ".gz") || !r.example.MatchString(e2e.Read(t, "../../../"+file)) {
			continue
		}
		listed := slices.ContainsFunc(named, func(pattern string) bool { return matches(pattern, file) })
		for pattern := range r.except {
			if matches(pattern, file) {
				listed, used[pattern] = true, true
			}
		}
		if !listed {
			t.Errorf("%s names the example of %q: add it to the recipe in docs/development.md, or to its exceptions here",
				file, r.heading)
		}
	}
	for pattern, reason := range r.except {
		if !used[pattern] {
			t.Errorf("no file %s names the example any more (%s): remove the exception", pattern, reason)
		}
	}
}

// matches reports whether a file has the pattern's name, or is in the folder that the pattern names.
func matches(pattern, file string) bool {
	ok, err := path.Match(pattern, file)
	return err == nil && ok || strings.HasPrefix(file, pattern+"/")
}
