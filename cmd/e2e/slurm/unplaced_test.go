// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// Without the wrapper, a program in the batch script, its children and ranks of mpirun are clients of MPS, except
// with unplaced = "deny".
func TestUnplacedProcessesUnderSlurm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, grant, script, want, without string }{
		{"batch script", "", "CLIENT info", "err=0(cudaSuccess) sm=132 ndev=2", ""},
		{"child that sees one of two GPUs", "", "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES##*,} CLIENT info", "err=0(cudaSuccess) sm=132 ndev=1", ""},
		{"below the ceiling", "ceiling = 25", "CLIENT info", "err=0(cudaSuccess) sm=32 ndev=2", ""},
		{"ranks of mpirun without the wrapper", "", "mpirun -np 2 --oversubscribe CLIENT info", "err=0(cudaSuccess) sm=132 ndev=2", "err=46"},
		{"ranks of the wrapper in the same job", `memory = "even"`,
			"srun -n2 WRAP info; mpirun -np 2 --oversubscribe WRAP info", "err=0(cudaSuccess) sm=132 ndev=1", "ndev=2"},
		{"denied", `unplaced = "deny"`, "CLIENT info", "err=46", "err=0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newCluster(t, testnode.Default(c.grant), lab.Options{PrologFlags: "Alloc"})
			wrapper := filepath.Join(cl.Top, "mpirun-wrap") + " " + cl.Client()
			id := cl.Batch(strings.NewReplacer("CLIENT", cl.Client(), "WRAP", wrapper).Replace(c.script), "-n2", "--gres=gpu:2")
			cl.Ended(id)
			out := cl.Output(id)
			must.Hold(t, strings.Contains(out, c.want) && (c.without == "" || !strings.Contains(out, c.without)),
				"the output is\n%s", out)
		})
	}
}

// A job prints once why it has no MPS: its task prolog does, and then no step and no wrapper does. Without a task prolog,
// the wrapper does. The program does not inherit the variable that tells the wrapper.
func TestAReasonIsPrintedOnce(t *testing.T) {
	t.Parallel()
	const reason = "this job has no MPS: "
	const failed = "\ncode 125\n"
	for _, c := range []struct {
		name, script string
		prolog       bool
		want         []string // each once
		not          string
	}{
		{"a step", "srun -n2 WRAP true", true, []string{"slurm-mps: " + reason, failed}, "mpirun-wrap:"},
		{"the program's variables", "srun -n1 --gpus=1 env SLURM_MPS_TOLD=x WRAP env", true, []string{"SLURM_STEP_ID=", "\ncode 0\n"}, "SLURM_MPS_TOLD"},
		{"no task prolog", "srun -n2 WRAP true", false, []string{"mpirun-wrap: " + reason, failed}, "slurm-mps:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newCluster(t, testnode.Default(""), lab.Options{PrologFlags: "Alloc"})
			if !c.prolog {
				must.OK(t, node.WriteProgram(filepath.Join(cl.Top, "task-prolog"), []byte("#!/bin/sh\n")))
			}
			args := []string{"-n2"}
			if strings.Contains(c.script, "--gpus") {
				args = append(args, "--gres=gpu:1")
			}
			wrapper := filepath.Join(cl.Top, "mpirun-wrap")
			id := cl.Batch(strings.ReplaceAll(c.script, "WRAP", wrapper)+"; echo code $?", args...)
			cl.Ended(id)
			out := cl.Output(id)
			for _, want := range c.want {
				if n := strings.Count(out, want); n != 1 {
					t.Errorf("%q is printed %d times:\n%s", want, n, out)
				}
			}
			must.Hold(t, !strings.Contains(out, c.not), "%q is printed:\n%s", c.not, out)
		})
	}
}
