// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/faultinject"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// another checks that the next job can open and close.
func (p testNode) another(job testnode.Job) {
	p.T.Helper()
	next := job
	next.ID++
	p.Must(0, next, "prolog")
	p.Must(0, next, "epilog")
	p.Quiet()
}

// shape is the kind of job in a sweep.
type shape struct {
	scope string
	gpus  int
}

var shapes = []shape{{"job", 1}, {"gpu", 1}, {"job", 4}, {"gpu", 4}}

// shapesFor returns the shapes for which there is time: all of them in the sweep, and if -run names one. Otherwise it
// returns the simplest job, and the one with the most GPUs and daemons.
func shapesFor(t *testing.T) []shape {
	if e2e.Everything || e2e.Named(t) {
		return shapes
	}
	return []shape{shapes[0], shapes[len(shapes)-1]}
}

func (s shape) String() string { return fmt.Sprintf("%s-%d", s.scope, s.gpus) }

// gpuList returns the value of SLURM_JOB_GPUS.
func (s shape) gpuList() string { return "0,1,2,3"[:2*s.gpus-1] }

// job returns a job of the shape. No other test of this package uses its user, so no other test can stop its daemons.
func (s shape) job(p testNode) testnode.Job {
	job := p.Job(7, s.gpuList())
	job.UID, job.GID = e2e.UID+1, e2e.UID+1
	return job
}

// stand makes a node for jobs of the shape.
func (s shape) stand(t *testing.T) testNode {
	t.Helper()
	models := slices.Repeat([]node.Model{node.H200}, s.gpus)
	policy := testnode.Default(fmt.Sprintf("scope = %q", s.scope), `drain_grace = "200ms"`, `keep_logs = "always"`)
	p := testNode{e2e.NodeIn(t, e2e.PublicDir(t), policy, models...)}
	return p
}

// If a prolog is killed after any of its effects, the epilog makes the node quiet.
//
// Contract: R1, R9
func TestAPrologKilledAnywhere(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	for _, s := range shapesFor(t) {
		t.Run(s.String(), func(t *testing.T) {
			p := s.stand(t)
			job := s.job(p)
			points := p.Points(job, "prolog")
			p.Must(0, job, "epilog")
			var tried atomic.Int32
			sweep(t, s, some(t, s, points, 12), func(p testNode, at e2e.Point) bool {
				job := s.job(p)
				reached := p.Killed(job, "prolog", at, p.Booted)
				p.Must(0, job, "epilog")
				p.Quiet()
				if e2e.Everything || tried.Add(1)%4 == 0 {
					p.another(job)
				}
				return reached
			})
		})
	}
}

// A prolog's daemon fails as the job's user, works as the account nobody and fails again as the user. If the prolog
// is killed after any of its effects, the epilog makes the node quiet.
func TestAPrologThatTriesAsNobodyKilledAnywhere(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	s := shapes[0]
	fails := func(p testNode) testnode.Job {
		job := s.job(p)
		p.ControlIs(fmt.Sprintf("#!/bin/sh\n[ $(id -u) = %d ] && exit 1\nexec %s \"$@\"\n", job.UID, p.Sim.Program("nvidia-cuda-mps-control")))
		return job
	}
	p := s.stand(t)
	job := fails(p)
	points := p.Points(job, "prolog")
	if ticket := p.Ticket(job.ID); !strings.Contains(ticket.RefusalReason, "it works for others") {
		t.Fatalf("the ticket's reason is %q", ticket.RefusalReason)
	}
	p.Must(0, job, "epilog")
	sweep(t, s, sample(t, points, 16), func(p testNode, at e2e.Point) bool {
		job := fails(p)
		reached := p.Killed(job, "prolog", at, p.Booted)
		p.Must(0, job, "epilog")
		p.Quiet()
		return reached
	})
}

// After a prolog was killed, slurmd may run another prolog for the same job, as after its own restart. The second
// prolog opens the lease.
func TestAPrologAfterOneThatWasKilled(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	s := shapes[0]
	p := s.stand(t)
	job := s.job(p)
	points := p.Points(job, "prolog")
	p.Must(0, job, "epilog")
	sweep(t, s, sample(t, points, 9), func(p testNode, at e2e.Point) bool {
		job := s.job(p)
		reached := p.Killed(job, "prolog", at, p.Booted)
		p.Must(0, job, "prolog")
		p.opened(job.ID)
		p.Must(0, job, "epilog")
		p.Quiet()
		return reached
	})
}

// keepsLease checks that the lease exists as long as anything else of the job does, because the lease tells an admin
// what to do.
func (p testNode) keepsLease() {
	p.T.Helper()
	if left := p.Leftovers(); len(left) > 0 && !slices.Contains(left, "file leases/7.json") {
		p.T.Errorf("left behind without a lease: %q\n%s", left, p.Log())
	}
}

// An epilog that is killed after any of its effects leaves the lease or nothing. The next epilog finishes.
//
// Contract: R9
func TestAnEpilogKilledAnywhere(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	for _, s := range shapesFor(t) {
		t.Run(s.String(), func(t *testing.T) {
			p := s.stand(t)
			job := s.job(p)
			p.Must(0, job, "prolog")
			points := p.Points(job, "epilog")
			sweep(t, s, some(t, s, points, 12), func(p testNode, at e2e.Point) bool {
				job := s.job(p)
				reached := p.Killed(job, "epilog", at, func() {
					p.Booted()
					p.Must(0, job, "prolog")
					p.Until("server that logs", func() bool { return strings.Contains(p.ServerLog(job.ID), "\n") })
				})
				p.keepsLease()
				p.Must(0, job, "epilog")
				p.Quiet()
				for _, name := range []string{"control.log", "server.log"} {
					if log := p.KeptLogs() + "7/0/" + name; !strings.Contains(e2e.Read(p.T, log), "\n") {
						p.T.Errorf("%s was not kept", log)
					}
				}
				return reached
			})
		})
	}
}

// A prolog is killed at one point and its epilog at another, and the next epilog finishes. The test tries every pair
// of points for a job with one GPU, and some pairs for other jobs.
func TestPrologAndEpilogKilledAnywhere(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	for _, s := range shapes {
		if s != shapes[0] && !e2e.Everything && !e2e.Named(t) {
			continue
		}
		t.Run(s.String(), func(t *testing.T) {
			p := s.stand(t)
			job := s.job(p)
			points, every := p.Points(job, "prolog"), 20
			p.Must(0, job, "epilog")
			if s != shapes[0] && !e2e.Named(t) {
				points, every = e2e.Nth(points, 8), 8
			}
			var pairs atomic.Int32
			sweep(t, s, sample(t, points, every), func(p testNode, first e2e.Point) (reached bool) {
				job := s.job(p)
				reached = p.Killed(job, "prolog", first, p.Booted)
				seconds := p.Points(job, "epilog")
				p.Quiet()
				if s != shapes[0] && !e2e.Named(p.T) {
					seconds = e2e.Nth(seconds, every)
				}
				for _, second := range sample(p.T, seconds, 5) {
					if !p.T.Run(subtest(second), func(t *testing.T) {
						p := testNode{p.Again(t)}
						p.Killed(job, "epilog", second, func() { reached = p.Killed(job, "prolog", first, p.Booted) && reached })
						p.Must(0, job, "epilog")
						p.Quiet()
						pairs.Add(1)
					}) {
						break // the next pair would find what this pair left behind
					}
				}
				return reached
			})
			t.Logf("%d pairs", pairs.Load())
			e2e.Report(t, t.Name()+" pairs", int(pairs.Load()), 0, 0)
		})
	}
}

// A prolog is killed when its child has not yet become the control program, so the child may still start a daemon.
// The epilog waits for the child; if the child does not go on, the epilog keeps the lease and the node drains.
func TestAnOrphanThatIsLate(t *testing.T) {
	e2e.JoinSweep(t, "points")
	t.Parallel()
	for _, c := range []struct {
		name  string
		moves bool
	}{{"and moves", true}, {"and does not", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := shapes[0]
			p := s.stand(t)
			p.Facts(`epilog_deadline = "5s"`)
			job := s.job(p)
			born := daemonsBirth(p.Points(job, "prolog"))
			p.Must(0, job, "epilog")
			ended := make(chan testnode.Result, 1)
			reached := p.killedAt(job, born, func() {
				go func() {
					result, _ := p.Run(p.Ctx, job.Environment("epilog_slurmd"), "epilog")
					ended <- result
				}()
				if p.waitsForLock(); !c.moves {
					ended <- <-ended
				}
			})
			if !reached {
				t.Fatalf("no prolog reaches %v", born)
			}
			result := <-ended
			if c.moves && result.Code != 0 {
				t.Errorf("epilog: %+v\n%s", result, p.Log())
			}
			if !c.moves {
				want := "epilog: cannot lock " + p.Paths().Run() + "/locks/7: "
				if result.Code != 1 || !strings.HasPrefix(result.Output, want) {
					t.Errorf("epilog: %+v, want 1 and %q", result, want)
				}
				p.Must(0, job, "epilog")
			}
			p.Quiet()
		})
	}
}

// killedAt runs a prolog and kills it at a point, and then calls a function. A run may take another way, for example
// start the guard before the daemon, and end without reaching the point. Then the next run follows, of three.
func (p testNode) killedAt(job testnode.Job, at e2e.Point, killed func()) (reached bool) {
	p.T.Helper()
	for tries := 0; !reached && tries < 3; tries++ {
		p.Trace(job, "prolog", faultinject.Plan{Kill: at.Reached(p.Node), Killed: func() { reached = true; killed() }})
		if !reached {
			p.Must(0, job, "epilog")
		}
	}
	return reached
}

// daemonsBirth returns the point at which the prolog makes the child that becomes the first control program.
func daemonsBirth(points []e2e.Point) e2e.Point {
	execs := slices.IndexFunc(points, func(at e2e.Point) bool { return strings.HasPrefix(at.Name, "child's execve ") })
	var born e2e.Point
	for _, at := range points[:max(execs, 0)] {
		if at.Name == "clone" {
			born = at
		}
	}
	return born
}

// waitsForLock waits until an epilog has opened the file of job 7's lock, which another process holds.
func (p testNode) waitsForLock() {
	if !e2e.Comes(func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		return slices.ContainsFunc(files, func(file string) bool {
			target, _ := os.Readlink(file)
			program, _ := os.Readlink(filepath.Join(filepath.Dir(filepath.Dir(file)), "exe"))
			return target == p.Paths().Run()+"/locks/7" && filepath.Base(program) == "epilog"
		})
	}) {
		p.T.Error("the epilog does not open the file of the job's lock")
	}
}
