// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A prolog that has undone a lease still holds the job's lock, and no other process gets it before the release. An
// epilog that has finished has removed the lock file.
//
// Contract: R9
func TestALockOutlivesForgetAndNotFinish(t *testing.T) {
	j := newStore(t)
	ctx := context.Background()
	l := leaseOf(7, gpuA)
	lock, err := j.Lock(ctx, 7)
	must.OK(t, errors.Join(err, j.Create(ctx, l), j.Delete(ctx, l)))
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	var busy *BusyError
	if _, err := j.Lock(short, 7); !errors.As(err, &busy) {
		t.Errorf("another process has the lock after Forget: %v", err)
	}
	must.OK(t, errors.Join(j.Create(ctx, l), j.DeleteAndUnlock(ctx, l)))
	if locked, err := j.LockedJobs(); err != nil || len(locked) != 0 {
		t.Errorf("locked jobs after Finish: %v, %v", locked, err)
	}
	must.Note(t, lock.Release())
}
