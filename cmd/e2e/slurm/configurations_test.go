// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// A job has one component on a node with GPUs and one on a node without. The ranks of the first have their GPU, and
// the ranks of the second run without the wrapper. The node without GPUs stays in service.
func TestAJobWithANodeWithoutGPUs(t *testing.T) {
	c := newCluster(t, "", lab.Options{Nodes: 2, UTSNodes: true, PrologFlags: "Alloc", GresOf: map[string]string{"n2": ""},
		GresConf: "NodeName=n1 Name=gpu File=%D/dev/nvidia[0-3]\n"})
	id := c.Batch("srun --het-group=0 -n2 "+c.Wrap("info")+"\nsrun --het-group=1 -n2 hostname\nsrun --het-group=1 -n1 "+c.Wrap("info")+"; echo code $?",
		"-N1", "-n2", "-w", "n1", "--gres=gpu:1", ":", "-N1", "-n2", "-w", "n2", "--constraint=mps")
	job := c.Ended(id)
	output := c.Output(id)
	if sms := e2e.SMCounts(t, output); len(sms) != 2 {
		t.Errorf("%+v: want two ranks on a GPU, got %v\n%s\n%s", job, sms, output, c.Log())
	}
	refused := "asks for MPS and has no GPU on node n2: submit it with --gres=gpu:N"
	if strings.Count(output, "n2\n") < 2 || !strings.Contains(output, refused) || !strings.Contains(output, "code 125\n") {
		t.Errorf("want two ranks on n2, and the wrapper's 125 and %q there\n%s\n%s", refused, output, c.Log())
	}
	c.Quiet()
}

// A dynamic node (slurmd -Z) is in no file, so nothing reads its GPUs and features there: prolog, ranks and epilog work
// as on a configured one.
func TestADynamicNode(t *testing.T) {
	c := newCluster(t, testnode.Default(`share = "even"`), lab.Options{PrologFlags: "Alloc", SameName: true, Dynamic: true})
	id := c.Batch("scontrol show node; srun -n4 "+c.Wrap("info"), "-n4", "--gres=gpu:2")
	job := c.Ended(id)
	if got := e2e.SMCounts(t, c.Output(id)); !slices.Equal(got, []int{66, 66, 66, 66}) ||
		!strings.Contains(c.Output(id), "DYNAMIC_NORM") {
		t.Errorf("SMs %v on a node that is not dynamic, or not halves: %+v\n%s\n%s", got, job, c.Output(id), c.Log())
	}
	c.Quiet()
}
