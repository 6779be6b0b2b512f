// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// These tests run prologs and epilogs at the same time. The result must be the same as if they ran one after another.

// raced builds the programs with the race detector and returns their folder, for the sweep named race. The build
// takes longer than all of these tests. A program that finds a race exits with a code that no test expects.
var raced = sync.OnceValues(func() (string, error) {
	shared, err := testnode.Shared()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(shared, "race")
	build := exec.Command("go", "build", "-race", "-o", dir+"/",
		e2e.Module+"cmd/prolog", e2e.Module+"cmd/epilog", e2e.Module+"cmd/guard", e2e.Module+"cmd/mpsctl")
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build with the race detector: %w: %s", err, out)
	}
	return dir, testnode.Link(dir)
})

// newCrowd returns a node on which many programs run at the same time.
func newCrowd(t *testing.T, policy string, gpus int) testNode {
	t.Helper()
	e2e.JoinSweep(t, "race")
	begin := e2e.ReportEnd(t)
	p := newTestNode(t, policy, slices.Repeat([]node.Model{node.H200}, gpus)...)
	begin()
	if e2e.SweepName != "race" {
		return p
	}
	dir := must.Get(raced())(t)
	p.Bin = dir
	return p
}

// runs runs a binary from any goroutine. The test fails if the binary cannot run or finds a race.
func (p testNode) runs(job testnode.Job, program string, args ...string) testnode.Result {
	env := append(job.Environment(program+"_slurmd"), "GORACE=exitcode=66 halt_on_error=1 atexit_sleep_ms=0")
	result, err := p.Run(p.Ctx, env, program, args...)
	if err != nil || result.Code == 66 || strings.Contains(result.Output, "DATA RACE") {
		p.T.Errorf("%s of job %d: %+v, %v", program, job.ID, result, err)
	}
	return result
}

// closes runs an epilog and checks that it exits with 0 and prints nothing.
func (p testNode) closes(job testnode.Job) {
	if did := p.runs(job, "epilog"); did.Code != 0 || did.Output != "" {
		p.T.Errorf("epilog of job %d: %+v", job.ID, did)
	}
}

// together calls functions at the same moment and waits for all.
func together(calls ...func()) {
	var all sync.WaitGroup
	start := make(chan struct{})
	for _, call := range calls {
		all.Go(func() { <-start; call() })
	}
	close(start)
	all.Wait()
}

// copies returns n functions, each of which calls one function with its index.
func copies(n int, call func(i int)) []func() {
	all := make([]func(), n)
	for i := range all {
		all[i] = func() { call(i) }
	}
	return all
}

// holds reports whether the lease of a job names a GPU.
func (p testNode) holds(job uint32, gpu int) bool {
	boot, err := proc.BootID()
	must.OK(p.T, err)
	l, err := lease.OpenReadOnly(p.Paths().Run(), boot).Read(job)
	if err != nil && !errors.Is(err, lease.ErrNotFound) {
		p.T.Error(err)
	}
	return slices.Contains(l.UUIDs(), p.UUID(gpu))
}

// has checks that a job has its GPUs for itself: leases, modes, a running daemon and a ticket.
func (p testNode) has(job uint32, gpus ...int) {
	p.T.Helper()
	modes := p.Modes()
	for _, gpu := range gpus {
		if !p.holds(job, gpu) {
			p.T.Errorf("GPU %d is not job %d's", gpu, job)
		}
		if modes[gpu] != '3' {
			p.T.Errorf("GPU %d of job %d is in mode %c", gpu, job, modes[gpu])
		}
	}
	ticket := p.Ticket(job)
	if len(ticket.Devices) != len(gpus) || len(ticket.Daemons) != 1 || !e2e.Alive(ticket.Daemons[0].Proc) {
		p.T.Errorf("ticket of job %d: %+v", job, ticket)
	}
}

// heldBy is what a prolog prints if another job holds its GPU.
var heldBy = regexp.MustCompile(`^prolog: cannot claim GPU-[0-9a-f-]+: job (\d+) holds it: its epilog has not closed it; ` +
	`if squeue -j \d+ shows that the job is gone: mpsctl reap --job \d+ --root \S+\n$`)

// Sixty-four jobs run on eight GPUs at the same time, while `mpsctl reap` runs. A GPU belongs to one job at a time, a
// failed prolog names the holder, no running job is reaped, and nothing is left.
func TestSixtyFourJobsAtOnce(t *testing.T) {
	const gpus, jobs = 8, 64
	p := newCrowd(t, "", gpus)
	var on, opened [gpus]atomic.Int32
	var ended atomic.Int32
	reapers := copies(2, func(int) {
		for ended.Load() < jobs {
			// With 1, reap reports running jobs, which it leaves alone.
			if did := p.runs(testnode.Job{}, "mpsctl", "reap"); did.Code != 0 && did.Code != 1 {
				t.Errorf("reap: %+v", did)
			}
		}
	})
	together(append(reapers, copies(jobs, func(i int) {
		defer ended.Add(1)
		gpu := i % gpus
		job := p.Job(uint32(100+i), strconv.Itoa(gpu))
		did := p.runs(job, "prolog")
		switch said := heldBy.FindStringSubmatch(did.Output); {
		case did.Code == 0:
			if n := on[gpu].Add(1); n != 1 {
				t.Errorf("%d jobs have GPU %d", n, gpu)
			}
			opened[gpu].Add(1)
			p.has(job.ID, gpu)
			on[gpu].Add(-1)
		case did.Code != 1 || said == nil:
			t.Errorf("prolog of job %d: %+v", job.ID, did)
		default:
			first, _ := strconv.Atoi(said[1])
			if first == int(job.ID) || (first-100)%gpus != gpu {
				t.Errorf("job %d on GPU %d is told that job %d has it", job.ID, gpu, first)
			}
		}
		p.closes(job)
	})...)...)
	for gpu := range gpus {
		if opened[gpu].Load() == 0 {
			t.Errorf("no job had GPU %d", gpu)
		}
	}
	p.Clean()
}

// Three epilogs of a job start while its prolog, whose slurmd has died, is still in the driver. The first epilog
// waits for the prolog or ends it, and no epilog ends another.
func TestEpilogsBesideAnOrphanedProlog(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		delay int
	}{{"that finishes", 500}, {"that hangs", 1_000_000}} {
		t.Run(c.name, func(t *testing.T) {
			p := newCrowd(t, "", 1)
			p.Facts(`epilog_deadline = "9s"`)
			must.OK(t, p.Sim.Node.Delay("nvmlDeviceSetComputeMode", c.delay))
			job := p.Job(7, "0")
			orphan := p.orphan(job)
			p.SleepsInDriver(orphan.PID)
			if err := p.Sim.Node.Delay("nvmlDeviceSetComputeMode", 0); err != nil { // so that the epilogs do not wait
				t.Fatal(err)
			}
			together(copies(3, func(int) { p.closes(job) })...)
			p.Clean()
			p.Gone(orphan)
			p.Clean()
		})
	}
}

// orphan starts a prolog whose parent exits at once.
func (p testNode) orphan(job testnode.Job) proc.Process {
	p.T.Helper()
	cmd := exec.Command("/bin/sh", "-c", `"$@" >/dev/null 2>&1 & echo $!`, "sh")
	cmd.Args = append(cmd.Args, p.Command("prolog")...)
	cmd.Env = job.Environment("prolog_slurmd")
	out := must.Get(cmd.Output())(p.T)
	pid := must.Get(strconv.Atoi(strings.TrimSpace(string(out))))(p.T)
	stat := must.Get(proc.ReadStat(pid))(p.T)
	p.T.Cleanup(func() { _ = stat.Kill(9) })
	return stat.Process
}

// A requeued job's next prolog starts while its epilog still runs, a little later in each round. One whole lease is
// left, or nothing.
func TestAPrologBesideItsEpilog(t *testing.T) {
	p := newCrowd(t, "", 1)
	job := p.Job(7, "0")
	for round := range 8 {
		p.Open(job)
		together(
			func() { p.closes(job) },
			func() {
				// Each round is at another point of the epilog.
				wait.Sleep(p.Ctx, time.Duration(round)*15*time.Millisecond)
				if did := p.runs(job, "prolog"); did.Code != 0 {
					t.Errorf("prolog: %+v", did)
				}
			},
		)
		if p.holds(7, 0) {
			p.has(7, 0)
		} else {
			p.Clean()
		}
	}
	p.Close(job)
}
