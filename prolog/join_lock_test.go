// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
)

// A prolog that joins holds the shared lease's lock from before the job's lease names the shared lease until after
// that. So the epilog of the last member cannot end the daemon between the two.
//
// Contract: S2
func TestAJoinHoldsTheSharedLease(t *testing.T) {
	n := newNode(t)
	shared := n.mustOpenAs(quarter(7), together()).Joined
	p := n.prolog()
	var held []bool // at the begin and the end of each step
	named := -1     // the first of these at which the lease of job 8 names the shared lease
	p.Clock = func() time.Time {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		lock, err := n.Store.Lock(ctx, shared)
		if err == nil {
			err = lock.Release()
		}
		var busy *lease.BusyError
		held = append(held, errors.As(err, &busy))
		if named < 0 && n.Store.IsMember(shared, 8) {
			named = len(held) - 1
		}
		return time.Now()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if outcome, err := p.Open(ctx, quarter(8), together()); outcome != Opened || err != nil {
		t.Fatalf("%s, %v", outcome, err)
	}
	if named < 1 || !held[named-1] || !held[named] {
		t.Errorf("the lock is held %v, and the lease is there from %d on", held, named)
	}
}
