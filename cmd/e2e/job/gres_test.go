// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// A job that has, or may have, only a part of a GPU is refused before any mode changes. It drains no node, and its
// epilog finds nothing to do.
func TestJobsThatShareAGPUByGres(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, gres, want string
		extra            []string
	}{
		{"a node with shards", "Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=8\n", "shares its GPUs by gres/shard", nil},
		{"a job of gres/mps", "Name=gpu File=/dev/nvidia[0-1]\nName=mps Count=200\n", "has a part of a GPU by gres/mps", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestNode(t, "", node.H200, node.H200)
			p.Write(p.Gres(), c.gres)
			for id := uint32(7); id <= 8; id++ { // two jobs on one GPU
				job := p.Job(id, "0")
				job.Extra = c.extra
				p.Must(0, job, "prolog")
				if refused := p.Ticket(id).RefusalReason; !strings.Contains(refused, c.want) {
					t.Errorf("job %d is refused for %q", id, refused)
				}
				if modes := p.Modes(); modes != "00" {
					t.Errorf("modes %s", modes)
				}
			}
			for id := uint32(7); id <= 8; id++ {
				p.Must(0, p.Job(id, "0"), "epilog")
			}
			p.Clean()
		})
	}
}

// If a node also has gres/mps, a job gets its whole GPUs as on any other node.
func TestAWholeGPUBesideGresMPS(t *testing.T) {
	p := newTestNode(t, "", node.H200, node.H200)
	p.Write(p.Gres(), "Name=gpu File=/dev/nvidia[0-1]\nName=mps Count=200\n")
	p.Must(0, p.Job(7, "0"), "prolog")
	if refused := p.Ticket(7).RefusalReason; refused != "" {
		t.Error(refused)
	}
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Clean()
}

// Under a real Slurm, two jobs that share a GPU by gres are refused and do not drain the node. A job beside them that
// does not use MPS computes.
func TestJobsThatShareAGPUByGresUnderSlurm(t *testing.T) {
	t.Parallel()
	const devices = "Name=gpu File=%D/dev/nvidia[0-3]\n"
	for _, c := range []struct{ name, gres, conf, asks, want string }{
		{"shard", "gpu:4,shard:8", "Name=shard Count=8\n", "--gres=shard:1", "shares its GPUs by gres/shard"},
		{"shard without a line", "gpu:4,shard:8", "", "--gres=shard:1", "shares its GPUs by gres/shard"},
		{"mps", "gpu:4,mps:400", "Name=mps Count=400\n", "--gres=mps:25", "has a part of a GPU by gres/mps"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newCluster(t, "", lab.Options{PrologFlags: "Alloc", Gres: c.gres, GresConf: devices + c.conf})
			var beside int
			if c.name != "mps" {
				beside = cl.plain("srun "+cl.Client()+" spin -ms 50 -for 3", c.asks)
			}
			ids := []int{
				cl.Batch("srun "+cl.Wrap("info"), "-n1", c.asks),
				cl.Batch("srun "+cl.Wrap("info"), "-n1", c.asks),
			}
			for _, id := range ids {
				cl.Ended(id)
				if out := cl.Output(id); !strings.Contains(out, c.want) {
					t.Errorf("job %d prints\n%s", id, out)
				}
			}
			if beside != 0 {
				cl.Ended(beside)
				if out := cl.Output(beside); !strings.Contains(out, "done kernels=") {
					t.Errorf("the job beside them prints\n%s", out)
				}
			}
			cl.Quiet()
			if c.name == "mps" { // a job gets a whole GPU of the node as on any other node
				id := cl.Batch("srun -n2 "+cl.Wrap("info"), "-n2", "--gres=gpu:1")
				cl.Ended(id)
				if got := e2e.SMCounts(t, cl.Output(id)); !slices.Equal(got, []int{132, 132}) {
					t.Errorf("SMs %v:\n%s", got, cl.Output(id))
				}
				cl.Quiet()
			}
		})
	}
}

// plain submits a script that does not ask for MPS.
func (c *cluster) plain(script string, args ...string) int {
	c.T.Helper()
	home, err := c.Home(c.User)
	if err != nil {
		c.T.Fatal(err)
	}
	id, err := c.Submit(c.Ctx, c.User, append(args, "-o", home+"/%A.%a.out", "--wrap", fmt.Sprintf("export LD_LIBRARY_PATH=%s; %s", c.First().Sim.Libraries(), script))...)
	if err != nil {
		c.T.Fatal(err)
	}
	return id
}
