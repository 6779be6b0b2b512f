// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// plant makes a module's folder with these files.
func plant(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestNotices checks that each module comes once, sorted by path, with every license and notice above its linked
// packages.
func TestNotices(t *testing.T) {
	root := plant(t, map[string]string{"LICENSE": "Go's\n"})
	b := plant(t, map[string]string{
		"LICENSE.md": "\r\nb's\r\nlicense\r\n", "NOTICE": "b's notice\n", "license.go": "package b", "licenses/x": "x",
		"linked/deep/COPYING": "deep's\n", "other/LICENSE": "of what is not linked\n",
	})
	a := plant(t, map[string]string{"LICENCE": "a's\n"})
	list := fmt.Sprintf(`{"Dir": %[1]q, "Standard": true}
{"Dir": %[2]q, "Module": {"Path": "example.org/b", "Version": "v1.2.3", "Dir": %[3]q}}
{"Dir": %[3]q, "Module": {"Path": "example.org/b", "Version": "v1.2.3", "Dir": %[3]q}}
{"Dir": %[4]q, "Module": {"Path": "example.org/a", "Version": "v0.1.0", "Dir": %[4]q,
 "Replace": {"Path": "example.org/fork", "Version": "v9.0.0"}}}
{"Dir": "/ours", "Module": {"Path": "example.org/ours", "Main": true}}
`, root+"/src/fmt", b+"/linked/deep", b, a)
	const want = `
================================================================================
Go's standard library VERSION
--------------------------------------------------------------------------------
LICENSE

Go's

================================================================================
example.org/a (replaced by example.org/fork) v9.0.0
--------------------------------------------------------------------------------
LICENCE

a's

================================================================================
example.org/b v1.2.3
--------------------------------------------------------------------------------
LICENSE.md

b's
license
--------------------------------------------------------------------------------
NOTICE

b's notice
--------------------------------------------------------------------------------
linked/deep/COPYING

deep's
`
	for range 5 {
		modules, err := gather(json.NewDecoder(strings.NewReader(list)), root)
		if err != nil {
			t.Fatal(err)
		}
		modules[0].version, modules[0].packages = "VERSION", nil
		got, err := notices(modules)
		if err != nil || got != head+want {
			t.Fatalf("%v, got\n%s\nwant\n%s", err, got, head+want)
		}
	}
}

// TestNoLicense checks that a module without a clear license is an error, and that nothing is printed.
func TestNoLicense(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"no file LICENSE or COPYING": {"README": "under MIT", "deep/LICENSE": "deep's", "NOTICE": "a notice"},
		"LICENSE is empty":           {"LICENSE": "\n", "deep/LICENSE": "deep's"},
	} {
		dir := plant(t, files)
		m := module{path: "example.org/m", version: "v1.0.0", dir: dir, packages: []string{dir, dir + "/deep"}}
		text, err := notices([]module{m})
		if err == nil || text != "" {
			t.Errorf("got %q, %v, want an error %q", text, err, want)
			continue
		}
		for _, want := range []string{"license of example.org/m v1.0.0: ", want} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("got error %v, want %q", err, want)
			}
		}
	}
	if _, err := notices(nil); err == nil {
		t.Error("no error without modules")
	}
}

// TestLinked checks that linked finds the modules of this module's programs in the module cache alone.
func TestLinked(t *testing.T) {
	t.Setenv("GOFLAGS", "-mod=readonly")
	t.Setenv("GOPROXY", "off")
	modules, err := linked([]string{"../../../cmd/mpsctl", "../../../cmd/guard"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := notices(modules)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nGo's standard library go", "\ngithub.com/spf13/cobra v", "\ngithub.com/NVIDIA/go-nvml v", "Mozilla Public License",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the notices lack %q", want)
		}
	}
	if strings.Contains(text, "slurm-mps/slurm-mps") {
		t.Error("the notices have slurm-mps itself")
	}
}
