// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// TestANodeThatLosesItsPower checks that no process of a powered-off node is left, not even a process that left its
// job. The node must return with another boot id. The boot id of the other node must stay the same.
func TestANodeThatLosesItsPower(t *testing.T) {
	needLab(t)
	s := up(t, Options{Nodes: 2, UTSNodes: true, BootIDs: true, Prefix: "power"})
	boots := []string{s.boot(t, "power1"), s.boot(t, "power2")}
	if boots[0] == boots[1] {
		t.Errorf("both nodes have boot id %s", boots[0])
	}
	home, err := s.Home(s.user)
	if err != nil {
		t.Fatal(err)
	}
	pids := filepath.Join(home, "pids")
	s.submit(t, "-w", "power1", "--wrap=setsid sh -c 'echo $$ >>"+pids+"; exec sleep 300' & echo $$ >>"+pids+"; wait")
	procs := s.written(t, pids, 2)
	if err := s.PowerOff("power1"); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(procs, proc.Process.Running) {
		t.Errorf("some of %v still run", procs)
	}
	if err := s.StartNode("power1"); err != nil {
		t.Fatal(err)
	}
	s.must(t, "scancel", "--user="+s.user.Name)
	if boot := s.boot(t, "power1"); boot == boots[0] {
		t.Errorf("the boot id is %s as before", boot)
	}
	if boot := s.boot(t, "power2"); boot != boots[1] {
		t.Errorf("the other node's boot id was %s and is %s", boots[1], boot)
	}
}

// boot returns the boot id that a job on a node reads. It must equal the cluster's boot id of the node.
func (s scene) boot(t *testing.T, node string) string {
	t.Helper()
	seen := strings.TrimSpace(s.must(t, "srun", "-w", node, "cat", bootID))
	if said, err := s.BootID(node); err != nil || said != seen {
		t.Errorf("a job reads boot id %q, and the cluster reports %q, %v", seen, said, err)
	}
	return seen
}

// written waits until a file has count pids, and returns the processes.
func (s scene) written(t *testing.T, path string, count int) []proc.Process {
	t.Helper()
	for {
		text, _ := os.ReadFile(path)
		if fields := strings.Fields(string(text)); len(fields) == count {
			var procs []proc.Process
			for _, field := range fields {
				pid, _ := strconv.Atoi(field)
				stat, err := proc.ReadStat(pid)
				if err != nil {
					t.Fatal(err)
				}
				procs = append(procs, stat.Process)
			}
			return procs
		}
		if !wait.Sleep(s.ctx, pollEvery) {
			t.Fatalf("%s: %q", path, text)
		}
	}
}
