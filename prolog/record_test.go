// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// record runs a prolog of a job without MPS under a policy that records all.
func (n *node) record(job slurm.Job) error {
	n.T.Helper()
	n.Events = nil
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return n.prolog().Record(ctx, job)
}

// plain is job 7 without a wish for MPS.
func plain(places ...int) slurm.Job {
	j := job(places...)
	j.Requested = nil
	return j
}

// A recorded job has a lease before its recorder starts, and neither a ticket nor another mode. GPUs that
// MPS cannot share are recorded, too.
func TestARecordedJobHasALeaseAlone(t *testing.T) {
	n := newNode(t)
	n.major, n.Modes[fakenode.GPUA] = 6, site.ModeProhibited
	must.OK(t, n.record(plain(0, 1)))
	n.Did("start guard: lease opening")
	l, err := n.Store.Read(7)
	if err != nil || !l.NoMPS || l.Phase != lease.Opened || l.Guard != n.Self || len(l.GPUs) != 2 || l.GPUs[1].Minor != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	if got := n.Records(); got != "lease open" {
		t.Errorf("the store has %s", got)
	}
}

// If anything fails, nothing is left. A job without a GPU is not recorded.
func TestARecorderThatDoesNotStartLeavesNothing(t *testing.T) {
	n := newNode(t)
	broken := errors.New("it is not ready")
	n.Fail["start guard"] = broken
	if err := n.record(plain(0)); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	n.Did("start guard: lease opening", "undo: lease opening")
	n.IsAsBefore()
	if err := n.record(plain()); err == nil {
		t.Error("a job without a GPU is recorded")
	}
	n.Did()
	n.IsAsBefore()
}

// The same prolog again keeps a recorder that runs, and replaces one that has ended. A job with MPS keeps its lease. A
// job that asks for MPS by now gets it in place of the recorder.
func TestARecordedJobAgain(t *testing.T) {
	n := newNode(t)
	for _, again := range []struct {
		guard proc.Process
		did   []string
	}{
		{proc.Process{}, []string{"start guard: lease opening"}},
		{n.Self, nil},
		{proc.Process{}, []string{"undo: lease open", "start guard: lease opening"}},
	} {
		n.guard = again.guard
		must.OK(t, n.record(plain(0)))
		n.Did(again.did...)
	}
	n.mustOpen(job(0))
	if l, err := n.Store.Read(7); err != nil || l.NoMPS || len(l.Daemons) != 1 || n.Events[0] != "undo: lease open" {
		t.Errorf("%+v, %v: %q", l, err, n.Events)
	}
	must.OK(t, n.record(plain(0)))
	n.Did()
	if l, err := n.Store.Read(7); err != nil || l.NoMPS {
		t.Errorf("the job has lost its MPS: %+v, %v", l, err)
	}
}

// A recorder that is left of another job with the same number, or of a prolog that was killed, is not this job's: it
// would look at other GPUs, and another user would own the report.
func TestARecorderOfAnotherRunIsReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		was  func(*lease.Lease)
		next func(*slurm.Job)
		keep bool
	}{
		"the same":           {keep: true},
		"another user":       {next: func(j *slurm.Job) { j.UID = 2002 }},
		"other GPUs":         {next: func(j *slurm.Job) { j.GPUs = []int{1} }},
		"a later run":        {next: func(j *slurm.Job) { j.SLUID = "s2" }},
		"an epilog began":    {was: func(l *lease.Lease) { l.Phase = lease.Closing }},
		"a prolog was ended": {was: func(l *lease.Lease) { l.Phase = lease.Opening }},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			must.OK(t, n.record(plain(0)))
			if c.was != nil {
				n.rewrite(c.was)
			}
			next := plain(0)
			if c.next != nil {
				c.next(&next)
			}
			must.OK(t, n.record(next))
			l, err := n.Store.Read(7)
			if err != nil || len(n.Events) == 0 != c.keep || l.Phase != lease.Opened || !l.NoMPS ||
				l.Job.UID != next.UID || l.SLUID != next.SLUID || len(l.GPUs) != 1 || l.GPUs[0].Minor != next.GPUs[0] {
				t.Errorf("%v, lease %+v, %v", n.Events, l, err)
			}
		})
	}
}

// If an earlier recorder cannot be ended, its lease stays, and no other recorder starts beside it.
func TestARecorderThatStaysIsNotReplaced(t *testing.T) {
	n := newNode(t)
	must.OK(t, n.record(plain(0)))
	n.guard.PID = 0 // its lock is free, and something else of its lease cannot be undone
	n.Fail["undo"] = errors.New("it stays")
	if err := n.record(plain(1)); !errors.Is(err, n.Fail["undo"]) {
		t.Errorf("%v", err)
	}
	if l, err := n.Store.Read(7); err != nil || l.GPUs[0].Minor != 0 {
		t.Errorf("the lease is %+v, %v", l, err)
	}
}
