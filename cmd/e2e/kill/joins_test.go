// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// joining is a prolog or an epilog of a job with a part of a GPU, which is killed beside another job or alone.
type joining struct {
	how, program string
	beside       bool // another job of the user is open on the GPU
}

func (j joining) String() string { return fmt.Sprintf("%s %s beside=%t", j.how, j.program, j.beside) }

var joinings = []joining{
	{"turns", "prolog", true}, {"turns", "epilog", true},
	{"user", "prolog", false}, {"user", "prolog", true}, {"user", "epilog", true}, {"user", "epilog", false},
}

// part returns a job with a quarter of a GPU.
func (p testNode) part(id uint32) testnode.Job {
	job := p.Job(id, "0")
	job.Extra = []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}
	return job
}

// stand makes a node whose GPUs jobs share by gres/mps.
func (j joining) stand(t *testing.T) testNode {
	t.Helper()
	p := testNode{e2e.NodeIn(t, e2e.PublicDir(t), testnode.Default(fmt.Sprintf("share_gpu = %q", j.how), `drain_grace = "200ms"`), node.H200)}
	p.Write(p.Gres(), "Name=gpu File=/dev/nvidia0\nName=mps Count=100\n")
	p.Write(p.Conf, strings.Replace(e2e.Read(t, p.Conf), "Gres=gpu:1", "Gres=gpu:1,mps:100", 1))
	return p
}

// start opens what is open before the program that is killed. It returns a client of the other job, if there is one.
func (j joining) start(p testNode) (neighbour *exec.Cmd) {
	p.T.Helper()
	if j.beside {
		p.Must(0, p.part(8), "prolog")
		neighbour = p.Client(8, "spin", "-ms", "5", "-for", "100", "-exit-idle")
	}
	if j.program == "epilog" {
		p.Must(0, p.part(7), "prolog")
	}
	return neighbour
}

// ends closes both jobs. The other job's client lives until its own epilog.
func (j joining) ends(p testNode, neighbour *exec.Cmd) {
	p.T.Helper()
	p.Must(0, p.part(7), "epilog")
	if neighbour != nil {
		state, err := proc.ReadStat(neighbour.Process.Pid)
		if err != nil || state.State == 'Z' || !e2e.Alive(p.Ticket(8).Daemons[0].Proc) {
			p.T.Errorf("the other job's client or daemon has ended: %v\n%s", err, p.Log())
		}
		_ = neighbour.Process.Signal(syscall.SIGTERM)
		_ = neighbour.Wait()
		p.Must(0, p.part(8), "epilog")
	}
	p.Quiet()
}

// ofHook returns what find finds by a run of the hook.
func ofHook[P any](t *testing.T, j joining, find func(testNode) []P) []P {
	t.Helper()
	p := j.stand(t)
	neighbour := j.start(p)
	found := find(p)
	j.ends(p, neighbour)
	return found
}

// A prolog or an epilog of a job with a part of a GPU is killed after any of its effects. Its next epilog finishes, and
// the other job on the GPU is not harmed.
//
// Contract: R9
func TestAJoinKilledAnywhere(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	for _, j := range joinings {
		t.Run(subtest(j), func(t *testing.T) {
			points := ofHook(t, j, func(p testNode) []e2e.Point { return p.Points(p.part(7), j.program) })
			sweepOn(t, j.stand, sample(t, points, 12), func(p testNode, at e2e.Point) bool {
				p.Booted()
				neighbour := j.start(p)
				again := false
				reached := p.Killed(p.part(7), j.program, at, func() {
					if again && j.program == "epilog" {
						p.Must(0, p.part(7), "prolog")
					}
					again = true
				})
				j.ends(p, neighbour)
				return reached
			})
		})
	}
}

// An effect of such a prolog or epilog fails. A prolog that ends with 0 has a daemon that runs. The next epilog
// finishes, and the other job on the GPU is not harmed.
//
// Contract: R9
func TestAJoinWhoseEffectsFail(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	for _, j := range joinings {
		t.Run(subtest(j), func(t *testing.T) {
			failures := ofHook(t, j, func(p testNode) []failure { return p.failures(p.part(7), j.program, e2e.Named(t), nil) })
			sweepOn(t, j.stand, sample(t, failures, 20), func(p testNode, f failure) (reached bool) {
				p.Booted()
				neighbour := j.start(p)
				result := p.failing(p.part(7), j.program, true, f.refuse(p, &reached))
				if j.program == "prolog" && result.Code == 0 && !e2e.Alive(p.Ticket(7).Daemons[0].Proc) {
					p.T.Errorf("exit 0 without a daemon\n%s", p.Log())
				}
				j.ends(p, neighbour)
				return reached
			})
		})
	}
}

// recorded is a node that records job 7, which asks for no MPS.
func recorded(t *testing.T) (testNode, testnode.Job) {
	t.Helper()
	policy := "record = \"all\"\n" + testnode.Default()
	p := testNode{e2e.NodeIn(t, e2e.PublicDir(t), policy, node.H200)}
	job := shapes[0].job(p)
	job.Features = ""
	return p, job
}

// If the prolog or the epilog of a recorded job is killed after any of its effects, the next epilog makes the node quiet.
//
// Contract: R1, R9, U5
func TestHooksOfARecordedJobKilledAnywhere(t *testing.T) {
	e2e.JoinSweep(t, "points")
	p, job := recorded(t)
	opened := p.Points(job, "prolog")
	closed := p.Points(job, "epilog")
	must.Have(t, len(opened) >= 10 && len(closed) >= 10,
		"effects: %d of the prolog, %d of the epilog", len(opened), len(closed))
	for _, at := range sample(t, opened, 8) {
		p.Killed(job, "prolog", at, p.Booted)
		p.Must(0, job, "epilog")
		p.Quiet()
	}
	for _, at := range sample(t, closed, 8) {
		p.Killed(job, "epilog", at, func() {
			p.Booted()
			p.Must(0, job, "prolog")
		})
		p.keepsLease()
		p.Must(0, job, "epilog")
		p.Quiet()
	}
}
