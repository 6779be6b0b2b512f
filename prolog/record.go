// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Record starts the recorder of a job that runs without MPS, and makes the lease by which the epilog ends it. The job
// has no ticket and no claim, so nothing of it concerns a job with MPS (docs/decisions.md, 65). NVML is not asked, because
// it may hang. If the job has MPS, its lease stays.
func (p Prolog) Record(ctx context.Context, job slurm.Job) error {
	found, err := p.locate(job, p.list)
	if err == nil && found.refusal != "" {
		err = errors.New(found.refusal)
	}
	if err != nil {
		return fmt.Errorf("cannot record job %d: %w", job.ID, err)
	}
	lock, err := p.Store.Lock(ctx, job.ID)
	if err != nil {
		return err
	}
	defer lock.Release()
	before, err := p.earlierLease(ctx, job)
	if err != nil {
		return err
	}
	if before != nil {
		guard, err := p.Guards.Running(job.ID)
		if err != nil || !before.NoMPS || guard.PID > 0 && isOf(*before, job, found) {
			return err
		}
		if err := p.undo(*before); err != nil {
			return err
		}
	}
	l, err := p.newLease(job, policy.Request{Job: job.Job}, found)
	if err != nil {
		return err
	}
	l.NoMPS, l.GuardGroup = true, p.Groups.OfGuard(job.ID)
	for _, d := range found.devices {
		l.GPUs = append(l.GPUs, lease.LeasedGPU{UUID: d.UUID, Minor: d.Minor})
	}
	if err := p.startRecorder(ctx, l); err != nil {
		return errors.Join(err, p.undo(l))
	}
	return nil
}

func (p Prolog) startRecorder(ctx context.Context, l lease.Lease) error {
	err := p.Store.Save(l)
	if err == nil {
		p.makeGroup(l.GuardGroup)
		err = p.Store.MakeDir(l.Job.ID)
	}
	if err == nil {
		l.Guard, err = p.Guards.Start(ctx, l.Job.ID)
	}
	if err == nil {
		err = p.Store.SetPhase(&l, lease.Opened)
	}
	return err
}

// isOf reports whether a recorder's lease is of this run of a job. Slurm may give a number again, to another user, and
// a recorder that did not end has drained no node. A lease without an opened phase would keep no report.
func isOf(l lease.Lease, job slurm.Job, found resolution) bool {
	return l.Phase == lease.Opened && l.SLUID == job.SLUID && l.Job.UID == job.UID &&
		slices.Equal(l.UUIDs(), site.UUIDs(found.devices))
}
