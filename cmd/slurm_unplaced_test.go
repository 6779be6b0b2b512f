// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// Without the wrapper, a program in the batch script, its children and ranks of mpirun are clients of MPS, except
// with unplaced = "deny". In a job that was refused MPS, each step prints the reason once, although it does not use
// the wrapper.
func TestUnplacedProcessesUnderSlurm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, grant, script, want, without string }{
		{"batch script", "", "CLIENT info", "err=0(cudaSuccess) sm=132 ndev=2", ""},
		{"child that sees one of two GPUs", "", "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES##*,} CLIENT info", "err=0(cudaSuccess) sm=132 ndev=1", ""},
		{"below the ceiling", "ceiling = 25", "CLIENT info", "err=0(cudaSuccess) sm=32 ndev=2", ""},
		{"ranks of mpirun without the wrapper", "", "mpirun -np 2 --oversubscribe CLIENT info", "err=0(cudaSuccess) sm=132 ndev=2", "err=46"},
		{"ranks of the wrapper in the same job", `memory = "even"`, "srun -n2 WRAP info; mpirun -np 2 --oversubscribe WRAP info", "err=0(cudaSuccess) sm=132 ndev=1", "ndev=2"},
		{"denied", `unplaced = "deny"`, "CLIENT info", "err=46", "err=0"},
		{"refused", "", "srun -n2 true", "slurm-mps: this job has no MPS: ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newCluster(t, testnode.Default(c.grant), lab.Options{PrologFlags: "Alloc"})
			args := []string{"-n2", "--gres=gpu:2"}
			if c.name == "refused" {
				args = []string{"-n2"} // no GPU
			}
			wrapper := filepath.Join(cl.dir, "mpirun-wrap") + " " + cl.client()
			id := cl.batch(strings.NewReplacer("CLIENT", cl.client(), "WRAP", wrapper).Replace(c.script), args...)
			cl.ended(id)
			out := cl.output(id)
			if !strings.Contains(out, c.want) || c.without != "" && strings.Contains(out, c.without) {
				t.Errorf("the output is\n%s", out)
			}
			// The batch script and the step print it. Slurm loses a step's line if its task ends at once.
			if n := strings.Count(out, c.want); c.name == "refused" && n > 2 {
				t.Errorf("the message is printed %d times:\n%s", n, out)
			}
		})
	}
}
