// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/faultinject"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// point is one effect of a prolog or an epilog: the effect's name, and its number among the effects of this name. The
// order of effects of parallel threads differs between runs; their names do not.
type point struct {
	name string
	nth  int
}

func (at point) String() string { return fmt.Sprintf("%s (%d)", at.name, at.nth) }

// reached returns a function that counts the effects of a run and reports whether an effect is this point.
func (at point) reached(p testNode) func(faultinject.Effect) bool {
	count := 0
	return func(e faultinject.Effect) bool {
		if p.name(e) != at.name {
			return false
		}
		count++
		return count == at.nth
	}
}

var (
	processes = regexp.MustCompile(`/(proc|task)/[0-9]+`)
	jobFiles  = regexp.MustCompile(`/run/mps[0-9]+`)
	drafts    = regexp.MustCompile(`(/\.draft-[^/ ]+-)[0-9]+`)
)

// name returns an effect's name without the parts that differ between runs.
func (p testNode) name(e faultinject.Effect) string {
	folder := filepath.Dir(p.Root)
	name := strings.ReplaceAll(e.String(), folder, "")
	// The folder is also in the name of a control group.
	name = strings.ReplaceAll(name, strings.ReplaceAll(strings.Trim(folder, "/"), "/", "-"), "")
	name = jobFiles.ReplaceAllString(name, "/run/mpsN")
	name = processes.ReplaceAllString(name, "/$1/N")
	return drafts.ReplaceAllString(name, "${1}N")
}

// changes reports whether an effect stays when the program is killed. Lines of the log do not count.
func (p testNode) changes(e faultinject.Effect) bool {
	return !e.Asks && !(e.Call == "write" && e.What == p.Paths().Log())
}

// trace runs a binary for a job under a plan.
func (p testNode) trace(job testnode.Job, program string, plan faultinject.Plan) faultinject.Result {
	p.t.Helper()
	result, err := faultinject.Run(p.ctx, p.Command(program), job.Environment(program+"_slurmd"), plan)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.log())
	}
	return result
}

// points traces one run of a program and returns its effects. It leaves out effects that fail by themselves, because
// they change nothing.
func (p testNode) points(job testnode.Job, program string) []point {
	p.t.Helper()
	var found tally
	result := p.trace(job, program, faultinject.Plan{Kill: func(e faultinject.Effect) bool {
		if p.changes(e) {
			found.add(p.name(e))
		}
		return false
	}})
	if result.Code != 0 {
		p.t.Fatalf("%s under the tracer: %+v\n%s", program, result, p.log())
	}
	return found.points
}

// tally numbers the effects of each name.
type tally struct {
	points []point
	seen   map[string]int
}

// add notes an effect, and returns it as a point.
func (l *tally) add(name string) point {
	if l.seen == nil {
		l.seen = map[string]int{}
	}
	l.seen[name]++
	l.points = append(l.points, point{name, l.seen[name]})
	return l.points[len(l.points)-1]
}

// killed runs a binary and kills it at a point. A run may take another way, for example ask a daemon twice, and end
// without reaching the point. Then it starts again from the start.
func (p testNode) killed(job testnode.Job, program string, at point, start func()) bool {
	p.t.Helper()
	for range 3 {
		start()
		hit := at.reached(p)
		result := p.trace(job, program, faultinject.Plan{Kill: func(e faultinject.Effect) bool { return p.changes(e) && hit(e) }})
		if result.Signal == syscall.SIGKILL {
			return true
		}
		if result.Code != 0 {
			p.t.Fatalf("%s: %+v\n%s", program, result, p.log())
		}
		p.must(0, job, "epilog")
	}
	return false
}

// another checks that the next job can open and close.
func (p testNode) another(job testnode.Job) {
	p.t.Helper()
	next := job
	next.ID++
	p.must(0, next, "prolog")
	p.must(0, next, "epilog")
	p.quiet()
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
	if everything || named(t) {
		return shapes
	}
	return []shape{shapes[0], shapes[len(shapes)-1]}
}

func (s shape) String() string { return fmt.Sprintf("%s-%d", s.scope, s.gpus) }

// gpuList returns the value of SLURM_JOB_GPUS.
func (s shape) gpuList() string { return "0,1,2,3"[:2*s.gpus-1] }

// job returns a job of the shape. No other test on this machine uses its user, so no other test can stop its daemons.
func (s shape) job(p testNode) testnode.Job {
	job := p.job(7, s.gpuList())
	job.UID, job.GID = 2011, 2011
	return job
}

// stand makes a node for jobs of the shape.
func (s shape) stand(t *testing.T) testNode {
	t.Helper()
	models := slices.Repeat([]node.Model{node.H200}, s.gpus)
	policy := testnode.Default(fmt.Sprintf("scope = %q", s.scope), `drain_grace = "200ms"`, `keep_logs = "always"`)
	p := testNodeIn(t, publicDir(t), policy, models...)
	// The folder is in /run, because only root may write there.
	p.facts(fmt.Sprintf("hpc_job_mapping_dir = %q", publicDirIn(t, "/run")))
	return p
}

// report adds a test's result to the file that RELIABILITY names, for docs/reliability.md (make reliability). A line
// has the name, the number of tries, the number of failures, the seconds and perhaps a sentence.
func report(t *testing.T, name string, tried, failed int, took time.Duration, said ...string) {
	t.Helper()
	path := os.Getenv("RELIABILITY")
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	line := fmt.Sprintf("%s\t%d\t%d\t%.0f", name, tried, failed, took.Seconds())
	if _, err := fmt.Fprintln(file, strings.Join(append([]string{line}, said...), "\t")); err != nil {
		t.Fatal(err)
	}
}

// reportEnd reports a test when it has ended. Call it first, so that its cleanup runs last and sees what all other
// cleanups find. Call begin when the test goes on after its wait for other tests.
func reportEnd(t *testing.T) (begin func()) {
	began := time.Now()
	t.Cleanup(func() {
		if t.Skipped() {
			return
		}
		failed := 0
		if t.Failed() {
			failed = 1
		}
		report(t, t.Name(), 1, failed, time.Since(began))
	})
	return func() { began = time.Now() }
}

// If a prolog is killed after any of its effects, the epilog makes the node quiet.
//
// Contract: R1, R9
func TestAPrologKilledAnywhere(t *testing.T) {
	joinSweep(t, "points")
	t.Parallel()
	for _, s := range shapesFor(t) {
		t.Run(s.String(), func(t *testing.T) {
			p := s.stand(t)
			job := s.job(p)
			points := p.points(job, "prolog")
			p.must(0, job, "epilog")
			var tried atomic.Int32
			sweep(t, s, some(t, s, points, 12), func(p testNode, at point) bool {
				job := s.job(p)
				reached := p.killed(job, "prolog", at, p.booted)
				p.must(0, job, "epilog")
				p.quiet()
				if everything || tried.Add(1)%4 == 0 {
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
	joinSweep(t, "points")
	t.Parallel()
	s := shapes[0]
	fails := func(p testNode) testnode.Job {
		job := s.job(p)
		p.controlIs(fmt.Sprintf("#!/bin/sh\n[ $(id -u) = %d ] && exit 1\nexec %s \"$@\"\n", job.UID, p.Sim.Program("nvidia-cuda-mps-control")))
		return job
	}
	p := s.stand(t)
	job := fails(p)
	points := p.points(job, "prolog")
	if ticket := p.ticket(job.ID); !strings.Contains(ticket.RefusalReason, "it works for others") {
		t.Fatalf("the ticket's reason is %q", ticket.RefusalReason)
	}
	p.must(0, job, "epilog")
	sweep(t, s, sample(t, points, 16), func(p testNode, at point) bool {
		job := fails(p)
		reached := p.killed(job, "prolog", at, p.booted)
		p.must(0, job, "epilog")
		p.quiet()
		return reached
	})
}

// After a prolog was killed, slurmd may run another prolog for the same job, as after its own restart. The second
// prolog opens the lease.
func TestAPrologAfterOneThatWasKilled(t *testing.T) {
	joinSweep(t, "points")
	t.Parallel()
	s := shapes[0]
	p := s.stand(t)
	job := s.job(p)
	points := p.points(job, "prolog")
	p.must(0, job, "epilog")
	sweep(t, s, sample(t, points, 9), func(p testNode, at point) bool {
		job := s.job(p)
		reached := p.killed(job, "prolog", at, p.booted)
		p.must(0, job, "prolog")
		p.opened(job.ID)
		p.must(0, job, "epilog")
		p.quiet()
		return reached
	})
}

// keepsLease checks that the lease exists as long as anything else of the job does, because the lease tells an admin
// what to do.
func (p testNode) keepsLease() {
	p.t.Helper()
	if left := p.left(); len(left) > 0 && !slices.Contains(left, "file leases/7.json") {
		p.t.Errorf("left behind without a lease: %q\n%s", left, p.log())
	}
}

// An epilog that is killed after any of its effects leaves the lease or nothing. The next epilog finishes.
//
// Contract: R9
func TestAnEpilogKilledAnywhere(t *testing.T) {
	joinSweep(t, "points")
	t.Parallel()
	for _, s := range shapesFor(t) {
		t.Run(s.String(), func(t *testing.T) {
			p := s.stand(t)
			job := s.job(p)
			p.must(0, job, "prolog")
			points := p.points(job, "epilog")
			sweep(t, s, some(t, s, points, 12), func(p testNode, at point) bool {
				job := s.job(p)
				reached := p.killed(job, "epilog", at, func() { p.booted(); p.must(0, job, "prolog") })
				p.keepsLease()
				p.must(0, job, "epilog")
				p.quiet()
				for _, name := range []string{"control.log", "server.log"} {
					if log := p.keptLogs() + "7/0/" + name; !strings.Contains(read(p.t, log), "\n") {
						p.t.Errorf("%s was not kept", log)
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
	joinSweep(t, "points")
	t.Parallel()
	for _, s := range shapes {
		if s != shapes[0] && !everything && !named(t) {
			continue
		}
		t.Run(s.String(), func(t *testing.T) {
			p := s.stand(t)
			job := s.job(p)
			points, every := p.points(job, "prolog"), 20
			p.must(0, job, "epilog")
			if s != shapes[0] && !named(t) {
				points, every = nth(points, 8), 8
			}
			var pairs atomic.Int32
			sweep(t, s, sample(t, points, every), func(p testNode, first point) (reached bool) {
				job := s.job(p)
				reached = p.killed(job, "prolog", first, p.booted)
				seconds := p.points(job, "epilog")
				p.quiet()
				if s != shapes[0] && !named(p.t) {
					seconds = nth(seconds, every)
				}
				for _, second := range sample(p.t, seconds, 5) {
					if !p.t.Run(subtest(second), func(t *testing.T) {
						p := p.again(t)
						p.killed(job, "epilog", second, func() { reached = p.killed(job, "prolog", first, p.booted) && reached })
						p.must(0, job, "epilog")
						p.quiet()
						pairs.Add(1)
					}) {
						break // the next pair would find what this pair left behind
					}
				}
				return reached
			})
			t.Logf("%d pairs", pairs.Load())
			report(t, t.Name()+" pairs", int(pairs.Load()), 0, 0)
		})
	}
}

// A prolog is killed when its child has not yet become the control program, so the child may still start a daemon.
// The epilog waits for the child; if the child does not go on, the epilog keeps the lease and the node drains.
func TestAnOrphanThatIsLate(t *testing.T) {
	joinSweep(t, "points")
	t.Parallel()
	for _, c := range []struct {
		name  string
		moves bool
	}{{"and moves", true}, {"and does not", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := shapes[0]
			p := s.stand(t)
			p.facts(`epilog_deadline = "5s"`)
			job := s.job(p)
			born := daemonsBirth(p.points(job, "prolog"))
			p.must(0, job, "epilog")
			hit, ended := born.reached(p), make(chan testnode.Result, 1)
			p.trace(job, "prolog", faultinject.Plan{
				Kill: hit,
				Killed: func() {
					go func() {
						result, _ := p.Run(p.ctx, job.Environment("epilog_slurmd"), "epilog")
						ended <- result
					}()
					if p.waitsForLock(); !c.moves {
						ended <- <-ended
					}
				},
			})
			result := <-ended
			if c.moves && result.Code != 0 {
				t.Errorf("epilog: %+v\n%s", result, p.log())
			}
			if !c.moves {
				want := "epilog: cannot lock " + p.Paths().Run() + "/locks/7: "
				if result.Code != 1 || !strings.HasPrefix(result.Output, want) {
					t.Errorf("epilog: %+v, want 1 and %q", result, want)
				}
				p.must(0, job, "epilog")
			}
			p.quiet()
		})
	}
}

// daemonsBirth returns the point at which the prolog makes the child that becomes the first control program.
func daemonsBirth(points []point) point {
	execs := slices.IndexFunc(points, func(at point) bool { return strings.HasPrefix(at.name, "child's execve ") })
	var born point
	for _, at := range points[:max(execs, 0)] {
		if at.name == "clone" {
			born = at
		}
	}
	return born
}

// waitsForLock waits until an epilog has opened the file of job 7's lock, which another process holds.
func (p testNode) waitsForLock() {
	for {
		files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, file := range files {
			target, _ := os.Readlink(file)
			program, _ := os.Readlink(filepath.Join(filepath.Dir(filepath.Dir(file)), "exe"))
			if target == p.Paths().Run()+"/locks/7" && filepath.Base(program) == "epilog" {
				return
			}
		}
		if !site.Sleep(p.ctx, time.Millisecond) {
			p.t.Error("the epilog does not open the file of the job's lock")
			return
		}
	}
}
