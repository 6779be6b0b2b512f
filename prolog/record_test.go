// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// plain is job 7 without MPS.
func plain(places ...int) slurm.Job {
	j := job(places...)
	j.Requested = nil
	return j
}

func (n *node) record(j slurm.Job) error {
	n.T.Helper()
	n.Events = nil
	return n.prolog().Record(context.Background(), j)
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
			if err := n.record(plain(0)); err != nil {
				t.Fatal(err)
			}
			if c.was != nil {
				n.rewrite(c.was)
			}
			next := plain(0)
			if c.next != nil {
				c.next(&next)
			}
			if err := n.record(next); err != nil {
				t.Fatal(err)
			}
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
	if err := n.record(plain(0)); err != nil {
		t.Fatal(err)
	}
	n.guard.PID = 0 // its lock is free, and something else of its lease cannot be undone
	n.Fail["undo"] = errors.New("it stays")
	if err := n.record(plain(1)); !errors.Is(err, n.Fail["undo"]) {
		t.Errorf("%v", err)
	}
	if l, err := n.Store.Read(7); err != nil || l.GPUs[0].Minor != 0 {
		t.Errorf("the lease is %+v, %v", l, err)
	}
}
