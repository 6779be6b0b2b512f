// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// leave ends a job's part in the daemons that it shares with other jobs of its user. The last member ends them, and
// another one only leaves. The job's clients have ended, because Slurm has ended its processes. The returned end is that of
// the daemons, if they have ended.
//
// The shared lease's lock makes one member the last one. A member that has left names the shared lease no more, so that
// two members that end at the same time do not both leave it to the other.
func (e Epilog) leave(ctx context.Context, l *lease.Lease) error {
	lock, err := e.Store.Lock(ctx, l.Joined)
	if err != nil {
		return err
	}
	defer lock.Release()
	members, err := e.Store.Members(l.Joined)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(members, func(job uint32) bool { return job == l.Job.ID })
	if len(others) == 0 {
		lock.MarkClosing()
		e.keptFor = l
		if err := e.closeShared(ctx, l.Joined); err != nil {
			return err
		}
	} else {
		e.keepSharedLogs(*l)
	}
	e.Log.Info().Str("step", "left").Str("daemon", lease.Name(l.Joined)).Uints32("others", others).Send()
	l.Joined = 0
	return e.Store.Save(*l)
}

// checkUnused returns an error if a shared lease has members, which an admin may have overlooked.
func (e Epilog) checkUnused(shared uint32) error {
	members, err := e.Store.Members(shared)
	if err == nil && len(members) > 0 {
		err = fmt.Errorf("cannot close %s: %s of its user use it: the epilog of the last one closes it",
			lease.Name(shared), words.Count(len(members), "job"))
	}
	return err
}

// closeShared undoes a shared lease without members. The caller holds its lock.
func (e Epilog) closeShared(ctx context.Context, id uint32) error {
	shared, err := e.Store.Read(id)
	switch {
	case errors.Is(err, lease.ErrNotFound), // an earlier epilog has ended it, or its prolog died while it wrote the lease
		errors.Is(err, lease.ErrStaleBoot):
		return e.Store.PurgeStale(ctx, id)
	case err != nil:
		return err
	}
	e.Log = e.Log.With().Str("daemon", lease.Name(id)).Logger()
	return e.undo(ctx, shared, e.Store.DeleteAndUnlock)
}
