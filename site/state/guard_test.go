// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A guard that does not look, processes that it cannot watch, and takers that no signal ends are findings. They are
// disagreements that status marks, and no violations of the policy.
func TestFindingsOfAGuard(t *testing.T) {
	since := time.Date(2026, 11, 20, 12, 30, 15, 0, time.UTC)
	n := good()
	n.Jobs[0].Guard = &Guard{PID: 50, Running: true}
	if found := diagnose(n); len(found) > 0 {
		t.Fatalf("%+v", found)
	}
	n.Jobs[0].Guard.Stalled = &since
	n.Jobs[0].Guard.Unguarded = []lease.Unguarded{
		{Cause: "cannot open a pidfd: too many open files", Processes: 34}, {Cause: "other causes", Processes: 1},
	}
	taker := func(uid, job uint32, pid int) lease.Taker {
		return lease.Taker{UID: uid, Job: job, Proc: proc.Process{PID: pid}, Left: true}
	}
	n.takers = []lease.Taker{taker(2002, 9, 94), taker(2001, 8, 93), taker(2001, 7, 91), taker(2001, 7, 92)}
	n.busy = []lease.Busy{{UID: 2001, Job: 6}}
	want := []string{
		"guard-stalled 7 50 job 7: pid 50 has not looked since 12:30:15",
		"clients-unguarded 7 50 job 7: cannot open a pidfd: too many open files: the guard could not watch 34 processes",
		"clients-unguarded 7 50 job 7: other causes: the guard could not watch 1 process of the",
		"takers-stuck 0 0 uid 2001: 3 processes of root's (pid 93 first), started for jobs 7, 8: each waits for",
		"takers-stuck 0 0 uid 2002: 1 process of root's (pid 94 first), started for job 9: each waits for",
		"memory-held 6 0 uid 2001: processes keep files of job 6 in use",
	}
	found := diagnose(n)
	must.Have(t, len(found) == len(want) && len(Disagreements(found)) == len(want) && len(Violations(found)) <= 0,
		"%+v", found)
	for i, f := range found {
		got := fmt.Sprintf("%s %d %d %s: %s", f.Kind, f.Job, f.PID, f.Where, f.What)
		if !strings.HasPrefix(got, want[i]) || f.Fix == "" {
			t.Errorf("%s, fix %q\nwant %s", got, f.Fix, want[i])
		}
	}
}

// A guard is stalled if it runs and has not acted by the time that it has promised, and some time more.
func TestWhetherAGuardIsStalled(t *testing.T) {
	must.Root(t)
	store := must.Get(lease.Open(t.TempDir(), "boot"))(t)
	self := must.Get(proc.Current())(t)
	lock := must.Get(store.LockGuard(t.Context(), 7))(t)
	now := time.Now()
	r := Reader{Store: store, Clock: func() time.Time { return now }}
	l := lease.Lease{Job: lease.Job{ID: 7}, Guard: self, Settings: lease.Settings{GuardSettings: lease.GuardSettings{Hold: lease.Duration(time.Second)}}}
	for _, c := range []struct {
		by      time.Duration // from now
		process proc.Process
		stalled bool
	}{
		{time.Hour, self, false}, {0, self, false},
		{-lateGuard + time.Second, self, false}, {-lateGuard - time.Second, self, true},
		{-time.Hour, proc.Process{PID: 1 << 22, Start: 1}, false}, // it has ended
	} {
		must.OK(t, lock.Promise(now.Add(c.by)))
		l.Guard = c.process
		if g := r.guardOf(l); (g.Stalled != nil) != c.stalled {
			t.Errorf("%+v: stalled since %v", c, g.Stalled)
		}
	}
}
