// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// shares are the two kinds of GRES that put several jobs on one GPU, half a GPU for each job.
var shares = []struct {
	name, gres string
	prolog     []string // what Slurm gives the prolog
	task       string   // what Slurm gives a task
}{
	{"shard", "Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=8\n", nil, "SLURM_SHARDS_ON_NODE=2"},
	{"mps", "Name=gpu File=/dev/nvidia[0-1]\nName=mps Count=200\n", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"},
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"},
}

// Two jobs on one GPU run under MPS, each with its part, and take turns or share a daemon. No job's rank and no job's end
// harms the other job. The mode of the GPU stays.
//
// Contract: S1, S2
func TestJobsThatShareAGPUByGres(t *testing.T) {
	t.Parallel()
	for _, share := range shares {
		for _, how := range []string{"turns", "user"} {
			t.Run(share.name+" "+how, func(t *testing.T) {
				p := newTestNode(t, testnode.Default(fmt.Sprintf("share_gpu = %q", how)), node.H200, node.H200)
				p.sharesGPUs(share.gres)
				both := []testnode.Job{p.Job(7, "0"), p.Job(8, "0")}
				for i := range both {
					both[i].Extra = share.prolog
					p.Open(both[i])
				}
				if modes := p.Modes(); modes != "00" {
					t.Errorf("modes %s", modes)
				}
				same := p.Ticket(7).Daemons[0].PipeDir == p.Ticket(8).Daemons[0].PipeDir
				must.Equal(t, "the jobs share a daemon", same, how == "user")
				for _, job := range both {
					p.placed(job.ID, share.task)
				}
				neighbour := p.neighbour(8)
				victim := p.neighbour(7)
				must.OK(t, victim.Process.Kill())
				p.Must(0, both[0], "epilog")
				p.lives(neighbour)
				p.placed(8, share.task)
				p.Must(0, both[0], "epilog") // closing twice is closing once
				p.lives(neighbour)
				if out := p.Ctl("audit").Output; strings.Contains(out, "job 7") {
					t.Errorf("audit prints\n%s", out)
				}
				_ = neighbour.Process.Signal(syscall.SIGTERM)
				_ = neighbour.Wait()
				p.Close(both[1])
			})
		}
	}
}

// sharesGPUs writes gres.conf, and slurm.conf with what it counts.
func (p testNode) sharesGPUs(gres string) {
	p.T.Helper()
	p.Write(p.Gres(), gres)
	conf := e2e.Read(p.T, p.Conf)
	with := strings.Replace(conf, "Gres=gpu:2", "Gres=gpu:2,shard:8,mps:200", 1)
	must.Have(p.T, with != conf, "%s has no Gres=gpu:2:\n%s", p.Conf, conf)
	if !strings.Contains(gres, "shard") {
		with = strings.Replace(with, "shard:8,", "", 1)
	}
	p.Write(p.Conf, with)
}

// placed checks that two ranks of a job divide the job's half of the GPU and of its memory.
func (p testNode) placed(job uint32, task string) {
	p.T.Helper()
	cmd := p.AsUser(job, p.Command("mpirun-wrap", "--share=even", "--local-rank=0", "--local-size=2", "--dry-run", "--json"))
	cmd.Env = append(cmd.Env, task)
	out, err := cmd.CombinedOutput()
	var row struct {
		SMs    int `json:"sms"`
		Memory int `json:"memory_mib"`
	}
	if err == nil {
		err = json.Unmarshal(out, &row)
	}
	// A quarter of the memory that CUDA has, without the context.
	if want := (143771-policy.ReserveMiB)/4 - policy.ContextMiB(34); err != nil || row.SMs != 34 || row.Memory != want {
		p.T.Errorf("job %d: %+v, %v, want 34 SMs and %d MiB:\n%s", job, row, err, want, out)
	}
}

// neighbour starts a client of a job that computes until it is asked to end.
func (p testNode) neighbour(job uint32) *exec.Cmd {
	return p.Client(job, "spin", "-ms", "5", "-for", "100", "-exit-idle")
}

// lives checks that a client still computes.
func (p testNode) lives(cmd *exec.Cmd) {
	p.T.Helper()
	state, err := proc.ReadStat(cmd.Process.Pid)
	if err != nil || state.State == 'Z' {
		p.T.Errorf("the client of the other job has ended: %v\n%s", err, p.Log())
	}
}

// A wrong address in one job's rank ends the ranks of that job alone, if the jobs take turns.
func TestAFaultStaysInItsJob(t *testing.T) {
	p := newTestNode(t, "", node.H200, node.H200)
	p.sharesGPUs(shares[1].gres)
	for id := uint32(7); id <= 8; id++ {
		job := p.Job(id, "0")
		job.Extra = shares[1].prolog
		p.Open(job)
	}
	neighbour, sibling := p.neighbour(8), p.neighbour(7)
	fault := p.AsUser(7, p.Command("mpirun-wrap", p.CudaClient(), "fault"))
	if out, err := fault.CombinedOutput(); err == nil {
		t.Errorf("the fault prints %s", out)
	}
	if err := sibling.Wait(); err == nil {
		t.Error("a rank of the same job has not failed: the simulation is kinder than a GPU")
	}
	p.lives(neighbour)
	_ = neighbour.Process.Signal(syscall.SIGTERM)
	_ = neighbour.Wait()
	for id := uint32(7); id <= 8; id++ {
		p.Must(0, p.Job(id, "0"), "epilog")
	}
	p.Clean()
}

// A GPU that an admin has made exclusive cannot have two jobs. The job is told, and the node is not drained.
func TestASharedGPUInExclusiveMode(t *testing.T) {
	p := newTestNode(t, "", node.H200, node.H200)
	p.sharesGPUs(shares[0].gres)
	must.OK(t, p.Sim.Node.GPU(0).Set("compute_mode", "3"))
	p.Must(0, p.Job(7, "0"), "prolog")
	if refused := p.Ticket(7).RefusalReason; !strings.Contains(refused, "nvidia-smi -i "+string(p.UUID(0))+" -c DEFAULT") {
		t.Errorf("refused for %q", refused)
	}
	p.Must(0, p.Job(7, "0"), "epilog")
}

// Under a real Slurm, two jobs on one GPU by gres run under MPS at the same time, and do not drain the node. A job beside
// them that does not use MPS computes.
func TestJobsThatShareAGPUByGresUnderSlurm(t *testing.T) {
	t.Parallel()
	const devices = "Name=gpu File=%D/dev/nvidia[0-3]\n"
	for _, c := range []struct {
		name, gres, conf, asks string
		sms                    int // of a rank that has the job's part alone
	}{
		{"shard", "gpu:4,shard:8", "Name=shard Count=8\n", "--gres=shard:1", 66},
		{"shard without a line", "gpu:4,shard:8", "", "--gres=shard:1", 66},
		{"mps", "gpu:4,mps:400", "Name=mps Count=400\n", "--gres=mps:25", 32},
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
				if got := e2e.SMCounts(t, cl.Output(id)); !slices.Equal(got, []int{c.sms}) {
					t.Errorf("job %d has SMs %v:\n%s", id, got, cl.Output(id))
				}
			}
			if beside != 0 {
				cl.Ended(beside)
				if out := cl.Output(beside); !strings.Contains(out, "done kernels=") {
					t.Errorf("the job beside them prints\n%s", out)
				}
			}
			cl.Quiet()
			id := cl.Batch("srun -n2 "+cl.Wrap("info"), "-n2", "--gres=gpu:1") // with overlap 2, each has the whole GPU
			cl.Ended(id)
			if got := e2e.SMCounts(t, cl.Output(id)); !slices.Equal(got, []int{132, 132}) {
				t.Errorf("SMs %v:\n%s", got, cl.Output(id))
			}
			cl.Quiet()
		})
	}
}

// plain submits a script that does not ask for MPS.
func (c *cluster) plain(script string, args ...string) int {
	c.T.Helper()
	home := must.Get(c.Home(c.User))(c.T)
	id, err := c.Submit(c.Ctx, c.User, append(args, "-o", home+"/%A.%a.out", "--wrap", fmt.Sprintf("export LD_LIBRARY_PATH=%s; %s", c.First().Sim.Libraries(), script))...)
	must.OK(c.T, err)
	return id
}
