// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A task prolog never fails a task. In a job that asks for MPS and has none, the first task of a node says why. In a
// job without MPS, it prints nothing. A batch script has no MPS if the policy denies it to what has no placement.
//
// Contract: K7
func TestATaskWithoutMPS(t *testing.T) {
	for _, c := range []struct {
		name   string
		job    int
		gone   bool // the daemon's socket
		first  bool
		denied bool // and the task is the batch script
		prints bool
	}{
		{"the daemon is gone, first task", 7, true, true, false, true},
		{"the daemon is gone, another task", 7, true, false, false, false},
		{"a job without MPS", 8, false, true, false, false},
		{"denied to the batch script", 7, false, true, true, false},
	} {
		paths, store, ticket := newJob(t)
		if c.gone {
			must.OK(t, os.Remove(filepath.Join(ticket.Daemons[0].PipeDir, "control")))
		}
		id := 1
		if c.first {
			id = 0
		}
		env := []string{
			fmt.Sprintf("SLURM_JOB_ID=%d", c.job), "SLURM_STEP_ID=0", "SLURM_PROCID=0", fmt.Sprintf("SLURM_LOCALID=%d", id),
			"SLURM_GTIDS=0,1", "SLURM_NODEID=0", fmt.Sprintf("SLURM_TASK_PID=%d", os.Getpid()),
		}
		if c.denied {
			ticket.Grant.Unplaced = policy.UnplacedDeny
			must.OK(t, store.WriteTicket(ticket))
			env = slices.Delete(env, 1, 2) // a batch script has no step
		}
		var out, failed bytes.Buffer
		run := newRun(os.Getpid(), env, &out, &failed)
		run.Paths = paths
		if run.printTask(); failed.Len() > 0 {
			t.Errorf("%s: stderr %s", c.name, failed.String())
		}
		prints := strings.HasPrefix(out.String(), "print slurm-mps: cannot use MPS on GPU-3")
		if prints != c.prints || !prints && out.Len() > 0 {
			t.Errorf("%s: it prints %q", c.name, out.String())
		}
	}
}

// In a job of several nodes, hydra gives all ranks the variables of the batch script, and the UUIDs of its node are on
// no other one. So the script's variables have the numbers of its GPUs there, also in the limit of memory.
func TestVariablesForOtherNodes(t *testing.T) {
	for nodes, index := range map[int]bool{1: false, 3: true} {
		paths, store, ticket := newJob(t)
		ticket.Grant.Memory, ticket.Devices[0].MemoryMiB = policy.EvenMemory(), 100_000
		must.OK(t, store.WriteTicket(ticket))
		var out bytes.Buffer
		run := newRun(os.Getpid(), []string{
			"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_NODEID=0",
			fmt.Sprintf("SLURM_JOB_NUM_NODES=%d", nodes), fmt.Sprintf("SLURM_TASK_PID=%d", os.Getpid()),
		}, &out, &out)
		run.Paths = paths
		run.printTask()
		if strings.Contains(out.String(), "export CUDA_VISIBLE_DEVICES=0") != index ||
			strings.Contains(out.String(), "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=") != index || strings.Contains(out.String(), "=GPU-") == index {
			t.Errorf("%d nodes: %s", nodes, out.String())
		}
	}
}
