// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/pkg/contents"
)

// recipe returns a file of places as a release has it.
func recipe(t *testing.T, path string) string {
	t.Helper()
	return readFile(t, filepath.Join("places", path))
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// builders are the recipes that build a user's programs.
var builders = []string{"spack/spack_repo/slurm_mps/packages/slurm_mps/package.py", "easybuild/slurm-mps.eb", "conda/meta.yaml"}

// TestBuilders checks that the recipes try each program of a user after the build, and no other, that they call targets of
// the Makefile, and that their Go is not older than go.mod's.
func TestBuilders(t *testing.T) {
	all, err := contents.Read("user.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var programs []string
	for _, e := range all {
		if name, found := strings.CutPrefix(e.Target, "/usr/bin/"); found {
			programs = append(programs, name)
		}
	}
	slices.Sort(programs)
	makefile := readFile(t, "../../Makefile")
	oldest := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(readFile(t, "../../go.mod"))[1]
	for _, path := range builders {
		text := recipe(t, path)
		named := regexp.MustCompile(`\b(mpirun-wrap|gpu-usage|mps-tune|mpsctl|prolog|epilog|guard|task-prolog)\b`).FindAllString(text, -1)
		slices.Sort(named)
		if got := slices.Compact(named); !slices.Equal(got, programs) {
			t.Errorf("%s tries the programs %q, want those of user.yaml: %q", path, got, programs)
		}
		for _, target := range []string{"parts", "install-user"} {
			if !regexp.MustCompile(`\b`+target+`\b`).MatchString(text) || !strings.Contains(makefile, "\n"+target+":") {
				t.Errorf("%s: no target %s there, or in the Makefile", path, target)
			}
		}
		if !regexp.MustCompile(`(go@|'Go', '|go-cgo"\) }} >=)` + regexp.QuoteMeta(oldest) + `\b`).MatchString(text) {
			t.Errorf("%s does not ask for Go %s", path, oldest)
		}
		for _, value := range []string{"@VERSION@", "@FOLDER@", "@FILE@", "@SHA256@"} {
			if strings.Count(text, value) != 1 {
				t.Errorf("%s has not %s once", path, value)
			}
		}
	}
	if text := recipe(t, "conda/meta.yaml"); !strings.Contains(text, "- .build/package/NOTICES\n") {
		t.Error("the recipe of conda lacks the licenses of our modules, which every copy of the programs must have")
	}
}

// TestPlacesNameFiles checks that the other recipes name paths that a package, or make install-user, installs.
func TestPlacesNameFiles(t *testing.T) {
	user, err := contents.Read("user.yaml")
	if err != nil {
		t.Fatal(err)
	}
	installed := ""
	for _, e := range append(user, entries(t)...) {
		installed += e.Target + "\n"
	}
	const overlay = "warewulf/slurm-mps/rootfs"
	for path, form := range map[string]string{
		"ansible/roles/slurm_mps/tasks/main.yml":      `cmd: (\S+)`,
		overlay + "/etc/slurm-mps/policy.hcl.ww":      `Include "([^"]+)"`,
		overlay + "/etc/slurm-mps/policy_test.hcl.ww": `Include "([^"]+)"`,
		"lmod/slurm-mps.lua":                          `pathJoin\(root, "([^"]+)"\)`,
	} {
		found := regexp.MustCompile(form).FindAllStringSubmatch(recipe(t, path), -1)
		for _, m := range found {
			if want := strings.TrimPrefix(m[1], "/"); !strings.Contains(installed, "/"+want+"\n") && !strings.Contains(installed, "/usr/"+want+"/") {
				t.Errorf("%s names %s, which nothing installs", path, m[1])
			}
		}
		if len(found) == 0 {
			t.Errorf("%s names no file", path)
		}
		if below, found := strings.CutPrefix(strings.TrimSuffix(path, ".ww"), overlay); found && !strings.Contains(installed, below+"\n") {
			t.Errorf("the overlay has %s, which nothing installs", below)
		}
	}
	if !strings.Contains(recipe(t, "ansible/roles/slurm_mps/tasks/main.yml"), "| from_json).diff ") ||
		!strings.Contains(readFile(t, "../../cmd/mpsctl/policy_apply.go"), "`json:\"diff\"`") {
		t.Error("the role looks for no diff, or mpsctl policy apply --json prints none: each run would change a node")
	}
}

// TestPlacesParse checks that Python and its parser of YAML can read the recipes. A recipe of conda is a template, and is
// read without the lines and the values of the template.
func TestPlacesParse(t *testing.T) {
	const script = `import ast, re, sys, yaml
for path in sys.argv[1:]:
    text = open(path).read()
    if path.endswith(("py", "eb")):
        ast.parse(text, path)
    elif not yaml.safe_load(re.sub(r"{%.*%}|{{.*?}}|@[A-Z0-9]+@", "value", re.sub(r"(?m)^{%.*%}$", "", text))):
        sys.exit(path + " is empty")
print("parsed", len(sys.argv) - 1)`
	var paths []string
	err := filepath.WalkDir("places", func(path string, entry fs.DirEntry, err error) error {
		if slices.Contains([]string{".py", ".eb", ".yaml", ".yml"}, filepath.Ext(path)) {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil || len(paths) != 8 {
		t.Errorf("recipes %q, %v", paths, err)
	}
	python := "/usr/bin/python3" // Debian's own has Debian's yaml
	if err := exec.Command(python, "-c", "import yaml").Run(); err != nil {
		t.Skipf("there is no Python with yaml (Debian: python3-yaml): %v", err)
	}
	if out, err := exec.Command(python, append([]string{"-c", script}, paths...)...).CombinedOutput(); err != nil || string(out) != "parsed 8\n" {
		t.Errorf("%v: %s", err, out)
	}
}
