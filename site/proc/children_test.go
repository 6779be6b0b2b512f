// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The search returns what the kernel's lists contain. It is for kernels that have no such lists.
func TestChildren(t *testing.T) {
	child := exec.Command("sleep", "60")
	must.OK(t, child.Start())
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	for name, find := range map[string]func(int) []int{"lists": Children, "search": childrenBySearch} {
		if got := find(os.Getpid()); !slices.Contains(got, child.Process.Pid) {
			t.Errorf("%s: %v, and %d is a child", name, got, child.Process.Pid)
		}
		if got := find(child.Process.Pid); len(got) != 0 {
			t.Errorf("%s: children of sleep: %v", name, got)
		}
	}
}
