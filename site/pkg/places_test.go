// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// recipe returns a file of places as a release has it.
func recipe(t *testing.T, path string) string {
	t.Helper()
	return readFile(t, filepath.Join("places", path))
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content := must.Get(os.ReadFile(path))(t)
	return string(content)
}

// TestPlacesNameFiles checks that the other recipes name paths that a package, or make install-user, installs.
func TestPlacesNameFiles(t *testing.T) {
	user := must.Get(readList("user.yaml"))(t)
	installed := ""
	for _, e := range append(user, entries(t)...) {
		installed += e.Target + "\n"
	}
	const overlay = "warewulf/slurm-mps/rootfs"
	for path, form := range map[string]string{
		"ansible/roles/slurm_mps/tasks/main.yml": `cmd: (\S+)`,
		overlay + "/etc/slurm-mps/policy.hcl.ww": `Include "([^"]+)"`,
		"lmod/slurm-mps.lua":                     `pathJoin\(root, "([^"]+)"\)`,
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
