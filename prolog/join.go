// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// joinWait limits the wait for a shared lease that another prolog or epilog holds, and the questions to its daemons. A job
// that cannot join in time gets a daemon of its own, which later jobs can join.
const joinWait = 3 * time.Second

// joinLease gives a job the daemons that jobs of the same user have on the same GPUs, or makes daemons that later jobs
// can join. The job's own lease comes first. It names the shared lease, so that the epilog of the last member ends it.
func (p Prolog) joinLease(ctx context.Context, a admission, l lease.Lease, devices []site.Device) (Outcome, error) {
	settings := l.Settings
	l.Settings = lease.Settings{} // the shared lease has them
	refusal, err := p.member(ctx, a, &l, settings, devices)
	if refusal == "" && err == nil {
		return opened, nil
	}
	if l.Joined != 0 { // its lease may exist
		if undone := p.undo(l); undone != nil {
			return Failed, dirtyError{errors.Join(err, undone)}
		}
	}
	if refusal != "" {
		return p.refuseUser(a, refusal)
	}
	return Failed, err
}

// member makes a job a member of a shared lease. It holds the shared lease's lock, so that the lease stays.
func (p Prolog) member(
	ctx context.Context, a admission, l *lease.Lease, settings lease.Settings, devices []site.Device,
) (refusal string, err error) {
	shared, lock := p.joinable(ctx, *l, settings)
	if lock == nil {
		if shared, lock, err = p.newShared(ctx, *l, settings); err != nil {
			return "", err
		}
	}
	defer lock.Release()
	l.Joined = shared.Job.ID
	if err := p.step("lease", func() error { return p.Store.Create(ctx, *l) }); err != nil {
		return "", err
	}
	if shared.Phase != lease.Opened {
		if refusal, err = p.serve(ctx, a, shared, devices); err != nil || refusal != "" {
			return refusal, err
		}
		if shared, err = p.Store.Read(shared.Job.ID); err != nil {
			return "", err
		}
	}
	p.Log.Info().Str("step", "joins").Str("daemon", lease.Name(shared.Job.ID)).Send()
	if err := p.step("folders", func() error { return p.Store.MakeDirs(*l) }); err != nil {
		return "", err
	}
	return "", p.step("ticket", func() error { return p.publish(*l, p.ticket(*l, shared, a, devices)) })
}

// joinable returns a shared lease that fits and whose daemons serve, and its lock. The lock is nil if there is none.
func (p Prolog) joinable(ctx context.Context, l lease.Lease, settings lease.Settings) (lease.Lease, *lease.JobLock) {
	ids, err := p.Store.Jobs()
	if err != nil {
		return lease.Lease{}, nil // Create reports it
	}
	ctx, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	for _, id := range ids {
		if shared, err := p.Store.Read(id); err != nil || !lease.IsShared(id) || !fits(shared, l, settings) {
			continue
		}
		lock, err := p.Store.Lock(ctx, id)
		if err != nil {
			continue
		}
		shared, err := p.Store.Read(id)
		if err == nil && fits(shared, l, settings) && p.serves(ctx, shared) {
			p.guardAgain(ctx, shared)
			return shared, lock
		}
		_ = lock.Release()
	}
	return lease.Lease{}, nil
}

// joins reports whether a job shares daemons with other jobs of its user.
func joins(grant policy.Grant, part lease.Part) bool {
	return part.Shared() && grant.ShareGPU == policy.ShareUser
}

// fits reports whether the daemons and the guard of a shared lease are those that the job would get alone. They run as
// the user with one of the user's groups, on the devices of the settings.
func fits(shared, l lease.Lease, settings lease.Settings) bool {
	return shared.Job.UID == l.Job.UID && shared.Job.GID == l.Job.GID && shared.Settings.Equal(settings)
}

// newShared drafts a shared lease, and takes its lock.
func (p Prolog) newShared(ctx context.Context, l lease.Lease, settings lease.Settings) (lease.Lease, *lease.JobLock, error) {
	id, lock, err := p.Store.NewShared(ctx)
	if err != nil {
		return l, nil, err
	}
	l.Job.ID, l.Settings, l.Daemons, l.GuardGroup = id, settings, p.daemons(id, settings), p.Groups.OfGuard(id)
	return l, lock, nil
}
