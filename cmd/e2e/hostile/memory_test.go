// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// claimant is a user whose processes claim to have much memory.
var claimant = stormy + 20

// A user's 250 processes claim an environment and a command line of 64 GiB each, which costs the user nothing. Root's
// programs read a bounded part of these in a bounded time.
//
// Half of the processes claim to be the job's daemon. The test runs each program without these processes and then
// beside them, and compares the costs. All processes run in one control group, so that the group's limit ends an
// unbounded reader before the machine runs out of memory.
func TestHostileClaimsOfMemory(t *testing.T) {
	// A program that reads all that one process claims takes more memory than the group has, and does not end. The rest
	// is for a machine that is busy: 250 processes and other tests share the cores.
	const processes, gib, maxMore, maxWork, maxLonger = 250, 64, 256 << 20, 20 * time.Second, time.Minute
	a := newAttack(t, "", 1)
	all := e2e.NewMemoryGroup(t, 3<<30)
	// Reads the files into the page cache, because the group's peak includes the cache.
	a.costs(all, a.Job(6, "0"), func() {})
	plain := a.costs(all, a.Job(7, "0"), func() {})
	beside := a.costs(all, a.Job(8, "0"), func() {
		pipe := filepath.Join(a.Paths().Run(), "jobs/8/0/pipe")
		line := []string{"setpriv", fmt.Sprint("--reuid=", claimant), fmt.Sprint("--regid=", claimant), "--clear-groups", a.named("nvidia-cuda-mps-server")}
		a.goesOn(a.as(0, all.Below("attack").Inside(append(line, "claims", strconv.Itoa(processes), strconv.Itoa(gib), pipe)...)...))
		if n := a.claiming(); n < processes {
			t.Fatalf("the attack does not start: %d processes claim memory", n)
		}
	})
	for _, p := range costed {
		t.Logf("%-8s %5d KiB, %v, work %v; beside them %5d KiB, %v, work %v", p.name, plain[p.name].peak>>10, plain[p.name].took, plain[p.name].work,
			beside[p.name].peak>>10, beside[p.name].took, beside[p.name].work)
		if more := beside[p.name].peak - plain[p.name].peak; more > maxMore {
			t.Errorf("%s takes %d MiB more", p.name, more>>20)
		}
		if more := beside[p.name].work - plain[p.name].work; more > maxWork {
			t.Errorf("%s works %v more", p.name, more)
		}
		if more := beside[p.name].took - plain[p.name].took; more > maxLonger {
			t.Errorf("%s takes %v more", p.name, more)
		}
	}
}

// claiming counts the user's processes whose environment is larger than the kernel allows.
func (a attack) claiming() (n int) {
	pids := must.Get(proc.PIDs())(a.T)
	for _, pid := range pids {
		if uids, err := proc.UIDs(pid); err != nil || uids[0] != claimant {
			continue
		}
		if file, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid)); err == nil {
			if got, _ := file.ReadAt(make([]byte, 1), 8<<20); got == 1 { // the kernel allows at most 6 MiB
				n++
			}
			file.Close()
		}
	}
	return n
}

// costed are the programs that look at processes, in the order of a job's life. Doctor and reap may exit with 1,
// because a test's node is not in perfect order.
var costed = []struct {
	name  string
	line  []string
	codes string
}{
	{"prolog", nil, "0"}, {"status", []string{"mpsctl", "status"}, "0"}, {"audit", []string{"mpsctl", "audit"}, "01"},
	{"metrics", []string{"mpsctl", "metrics"}, "01"}, {"doctor", []string{"mpsctl", "doctor"}, "01"},
	{"reap", []string{"mpsctl", "reap"}, "01"}, {"epilog", nil, "0"},
}

type cost struct {
	peak       int64
	took, work time.Duration // wall time, and processor time
}

// costs runs each program of a job's life in a control group of its own, and returns what each one costs.
func (a attack) costs(all e2e.MemoryGroup, job testnode.Job, begin func()) map[string]cost {
	a.T.Helper()
	job.UID, job.GID = claimant, claimant
	begin()
	found := map[string]cost{}
	for _, p := range costed {
		own := all.Below(fmt.Sprint(p.name, job.ID))
		line := a.Command(p.name)
		if p.line != nil {
			line = a.Command(p.line[0], p.line[1:]...)
		}
		line = own.Inside(line...)
		cmd := exec.CommandContext(a.Ctx, line[0], line[1:]...)
		cmd.Dir = "/"
		cmd.Env = os.Environ()
		if p.line == nil {
			cmd.Env = job.Environment(p.name + "_slurmd")
		}
		began := time.Now()
		out, err := cmd.CombinedOutput()
		must.Have(a.T, cmd.ProcessState != nil, "%s of job %d: %v", p.name, job.ID, err)
		found[p.name] = cost{own.Peak(), time.Since(began), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
		if code := cmd.ProcessState.ExitCode(); !strings.Contains(p.codes, strconv.Itoa(code)) {
			a.T.Errorf("%s of job %d: code %d: %.2000s", p.name, job.ID, code, out)
		}
	}
	return found
}
