// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// Build needs no source of this module: the test runs it in an empty directory.
func TestBuildMakesEveryTargetOnceAndAnywhere(t *testing.T) {
	t.Chdir(t.TempDir())
	built := t.TempDir()
	if err := Build(built); err != nil {
		t.Fatal(err)
	}
	before := map[string]os.FileInfo{}
	for _, target := range targets {
		info, err := os.Stat(filepath.Join(built, target.output))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o755 || info.Size() == 0 {
			t.Errorf("%s: mode %v, %d bytes", target.output, info.Mode(), info.Size())
		}
		before[target.output] = info
	}
	if err := Build(built); err != nil {
		t.Fatal(err)
	}
	for output, info := range before {
		again, err := os.Stat(filepath.Join(built, output))
		if err != nil || !os.SameFile(info, again) {
			t.Errorf("%s was built twice (%v)", output, err)
		}
	}
	testNew(t, built)
}

func testNew(t *testing.T, built string) {
	t.Helper()
	dir := t.TempDir()
	first, err := New(dir, built, node.H200, node.H200)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := os.Stat(first.NVML())
	if err != nil {
		t.Fatal(err)
	}
	second, err := New(dir, built, node.T4)
	if err != nil {
		t.Fatal(err)
	}
	if gpus, err := second.Node.GPUs(); err != nil || len(gpus) != 1 {
		t.Errorf("second node has GPUs %v, %v", gpus, err)
	}
	if again, err := os.Stat(second.NVML()); err != nil || !os.SameFile(loaded, again) {
		t.Errorf("library was replaced (%v), though a process may have loaded it", err)
	}
}
