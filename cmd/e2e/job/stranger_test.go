// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

const (
	computes = "spin -ms 5 -for 900 -mib %d -exit-idle"
	rests    = "spin -ms 0 -for 900 -mib %d -exit-idle"
)

// Other users' programs on the same GPU compute all the time and have much memory. A rank of this job is killed with
// work in flight. That costs its three neighbours nothing that the job does not need itself, and none of them dies.
//
// Contract: G2, S2
func TestAStrangerOnTheSameGPU(t *testing.T) {
	const room, need = 1000, 60_000 // MiB of the killed rank: with the last, its successor needs what it holds
	for _, c := range []struct {
		name      string
		share     int      // of shares
		strangers []string // of one job each
		mib       int
		pause     string
		reads     bool // the driver tells whose work it is
		restarts  bool // the strangers
		pauses    int
	}{
		{"mps", 1, []string{computes}, room, "5s", true, false, 0},
		{"shard", 0, []string{computes}, room, "5s", true, false, 0},
		{"two others", 1, []string{computes, computes}, room, "5s", true, false, 0},
		{"starts and stops", 1, []string{computes}, room, "5s", true, true, 0},
		{"memory is needed", 1, []string{computes}, need, "12s", true, false, 1},
		{"memory is needed, and the pause is short", 1, []string{computes}, need, "3s", true, false, 0},
		{"memory is needed, and the other rests", 1, []string{rests}, need, "4s", true, false, 1},
		{"memory is needed, and the driver does not tell", 1, []string{computes}, need, "12s", false, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			hold := 4 * time.Second
			policy := testnode.Default(`share_gpu = "turns"`, fmt.Sprintf("hold = %q", hold), fmt.Sprintf("pause = %q", c.pause))
			p := newTestNode(t, policy, node.H200, node.H200)
			p.sharesGPUs(shares[c.share].gres)
			job := p.Job(7, "0")
			job.Extra = shares[c.share].prolog
			p.Open(job)
			for i, line := range c.strangers {
				id, uid := uint32(8+i), e2e.OtherUID+uint32(i)
				p.joins(id, uid, shares[c.share].prolog)
				line = fmt.Sprintf(line, 70_000/len(c.strangers))
				start := func() *exec.Cmd { return p.Ready(p.asStranger(id, uid, line)) }
				first := start()
				if c.restarts {
					defer restarts(first, start)() // before the cleanups, which end the programs
				}
			}
			if !c.reads {
				p.Fail("nvmlDeviceGetProcessUtilization", 4, 0)
			}
			var neighbours []*exec.Cmd
			for range 3 {
				neighbours = append(neighbours, p.Client(7, strings.Fields(fmt.Sprintf(computes, 1000))...))
			}
			victim := p.Client(7, "spin", "-ms", "5", "-queue", "100", "-for", "900", "-mib", fmt.Sprint(c.mib))
			p.Until("guard that has seen it", func() bool { return p.guard(7).Clients >= 1+len(neighbours) })
			_ = victim.Process.Kill()
			died := time.Now()
			if c.pauses > 0 {
				p.Until("pause", func() bool {
					got := p.guard(7)
					return got.Released["work done"] == 1 && got.Pauses > 0
				})
			} else {
				wait.Sleep(p.Ctx, time.Until(died.Add(hold+2*time.Second)))
				if got := p.guard(7); got.Dead != 1 || len(got.Released) > 0 {
					t.Errorf("while neighbours and others compute: %+v", got)
				}
			}
			for _, n := range neighbours {
				p.lives(n)
			}
			// One that is of no use ends when the samples first name the other: work of both is in them in turns.
			limit := must.Get(time.ParseDuration(c.pause))(t)
			got, short := p.guard(7), limit*3/4
			useless := c.pauses == 0 && (c.mib == room && got.Pauses > 0 || got.PausedMillis > short.Milliseconds())
			must.Hold(t, !useless && got.Pauses >= c.pauses && got.Released["hold over"] <= 0,
				"%d pauses of %d ms; closed: %v", got.Pauses, got.PausedMillis, got.Released)
			if !c.reads { // the neighbours' end bounds the holding
				for _, n := range neighbours {
					_ = n.Process.Signal(syscall.SIGTERM)
					_ = n.Wait()
				}
				p.Until("close", func() bool { return p.guard(7).Dead == 0 })
			} else {
				p.rest(neighbours, true) // the job's own work ends, and the others' goes on
				p.Until("close", func() bool { return p.guard(7).Released["work done"] == 1 })
				p.rest(neighbours, false)
				wait.Sleep(p.Ctx, time.Second)
				for _, n := range neighbours {
					p.lives(n)
				}
			}
			for _, line := range strings.Split(p.Log(), "\n") {
				if strings.Contains(line, "paused the") || strings.Contains(line, "let go") {
					t.Log(line)
				}
			}
		})
	}
}

// joins starts a job of another user.
func (p testNode) joins(id, uid uint32, extra []string) {
	p.T.Helper()
	job := p.Job(id, "0")
	job.Extra, job.UID, job.GID = extra, uid, uid
	p.Open(job)
}

// asStranger is a CUDA client of another user's job.
func (p testNode) asStranger(job, uid uint32, line string) *exec.Cmd {
	cmd := p.AsUser(job, p.Command("mpirun-wrap", append([]string{p.CudaClient()}, strings.Fields(line)...)...))
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{uid}}
	return cmd
}

// restarts ends a stranger's program and starts it again, until stop is called.
func restarts(program *exec.Cmd, start func() *exec.Cmd) (stop func()) {
	ended := make(chan bool)
	done := make(chan bool)
	go func() {
		defer close(done)
		for {
			select {
			case <-ended:
				return
			case <-time.After(1300 * time.Millisecond):
			}
			_ = program.Process.Signal(syscall.SIGTERM)
			_ = program.Wait()
			program = start()
		}
	}()
	return func() { close(ended); <-done }
}

// rest stops or continues some processes.
func (p testNode) rest(all []*exec.Cmd, stop bool) {
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	for _, cmd := range all {
		_ = cmd.Process.Signal(signal)
	}
}

// guard returns the state of a job's guard.
func (p testNode) guard(job uint32) lease.GuardState {
	p.T.Helper()
	state, err := lease.OpenReadOnly(p.Paths().Run(), e2e.Boot(p.T)).ReadGuard(job)
	if err != nil {
		p.T.Fatalf("%v\n%s", err, p.Log())
	}
	return state
}
