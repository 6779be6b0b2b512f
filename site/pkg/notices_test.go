// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// plant makes a module's folder with these files.
func plant(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)))
	}
	return dir
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
	modules := must.Get(linked([]string{"../../cmd/mpsctl", "../../cmd/guard"}))(t)
	text := must.Get(notices(modules))(t)
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
