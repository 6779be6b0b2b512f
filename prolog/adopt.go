// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"slices"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// earlierLease returns the lease that an earlier prolog of the same job left. It is nil if there is none, or if it is
// void.
func (p Prolog) earlierLease(ctx context.Context, job slurm.Job) (*lease.Lease, error) {
	l, err := p.Store.Read(job.ID)
	switch {
	case errors.Is(err, lease.ErrNotFound):
		return nil, nil
	case errors.Is(err, lease.ErrStaleBoot):
		return nil, p.Store.PurgeStale(ctx, job.ID)
	case err != nil:
		return nil, dirtyError{err}
	}
	return &l, nil
}

// adoptable reports whether a lease can stay as it is: open, with the same devices, and with daemons that serve. It
// returns the lease that has the daemons. If the policy denies the job by now, or grants something else, the lease of
// a job with a ticket stays, because the job runs already.
func (p Prolog) adoptable(ctx context.Context, a admission, l lease.Lease, found resolution) (serving lease.Lease, ok bool) {
	changed := found.refusal == "" && !slices.Equal(l.UUIDs(), site.UUIDs(found.devices))
	if l.NoMPS || l.Phase != lease.Opened || changed {
		return l, false
	}
	serving = l
	if l.Joined != 0 {
		var err error
		if serving, err = p.Store.Read(l.Joined); err != nil {
			return l, false
		}
	}
	if _, err := p.Store.ReadTicket(l.Job.ID); err != nil && !p.asGranted(serving, a, found) {
		return l, false // no rank has started with it yet
	}
	return serving, p.serves(ctx, serving)
}

// asGranted reports whether a lease has the settings that the job would get now.
func (p Prolog) asGranted(serving lease.Lease, a admission, found resolution) bool {
	if found.refusal != "" {
		return false
	}
	settings, err := p.settings(a.verdict.Grant, found)
	return err == nil && serving.Settings.Equal(settings)
}

// serves reports whether a lease is open and its daemons answer.
func (p Prolog) serves(ctx context.Context, l lease.Lease) bool {
	if l.Phase != lease.Opened {
		return false
	}
	for _, d := range l.Daemons {
		if !d.Proc.Running() {
			return false
		}
		if err := p.Daemons.Ping(ctx, l.Job, d); err != nil {
			p.Log.Warn().Err(err).Msg("an earlier daemon is not used")
			return false
		}
	}
	return true
}

// guardAdopted starts another guard for an adopted job, if its guard is gone. The lease of a job that has joined others
// is theirs too, so it is read and saved under its lock.
func (p Prolog) guardAdopted(ctx context.Context, l lease.Lease) {
	if lease.IsShared(l.Job.ID) {
		bound, cancel := context.WithTimeout(ctx, joinWait)
		defer cancel()
		lock, err := p.Store.Lock(bound, l.Job.ID)
		if err == nil {
			defer lock.Release()
			l, err = p.Store.Read(l.Job.ID)
		}
		if err != nil {
			p.Log.Error().Err(err).Msg("cannot see whether the shared guard runs")
			return
		}
	}
	p.guardAgain(ctx, l)
}

// guardAgain starts another guard for an adopted lease whose guard is gone. Without a guard the job continues,
// and status reports that.
func (p Prolog) guardAgain(ctx context.Context, l lease.Lease) {
	if running, err := p.Guards.Running(l.Job.ID); err != nil || running.PID > 0 || l.Hold == 0 {
		return
	}
	guard, err := p.Guards.Start(ctx, l.Job.ID)
	if err == nil {
		l.Guard = guard
		err = p.Store.Save(l)
	}
	if err != nil {
		p.Log.Error().Err(err).Msg("the job's guard was gone, and another one does not start")
		return
	}
	p.Log.Warn().Int("pid", guard.PID).Msg("the job's guard was gone: another one is started")
}

// republish writes the ticket of an adopted lease if a prolog died before it could.
func (p Prolog) republish(l, serving lease.Lease, a admission, devices []site.Device) error {
	_, err := p.Store.ReadTicket(l.Job.ID)
	if errors.Is(err, lease.ErrNotFound) {
		return p.Store.WriteTicket(p.ticket(l, serving, a, devices))
	}
	return err
}
