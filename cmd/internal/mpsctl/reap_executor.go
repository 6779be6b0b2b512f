// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"context"
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/hook"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// executor makes the changes of reap. The executor of a dry run changes nothing.
type executor interface {
	within(func(context.Context) error) error
	take(ctx context.Context, job uint32) (release func(), err error)
	undo(context.Context, lease.Lease) error
	void(context.Context, uint32, []hook.OrphanDaemon) error
	close()
}

// lockTimeout is how long to wait for a prolog or an epilog of the job. reap never ends that process, because only an
// epilog may do so.
const lockTimeout = 2 * time.Second

// realExecutor changes the node.
type realExecutor struct{ *hook.Cleanup }

func (r realExecutor) within(act func(context.Context) error) error { return r.Within(act) }

func (r realExecutor) take(ctx context.Context, job uint32) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	lock, err := r.Store().Lock(ctx, job)
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Release() }, nil
}

func (r realExecutor) undo(ctx context.Context, l lease.Lease) error { return r.Undo(ctx, l) }

func (r realExecutor) void(ctx context.Context, job uint32, daemons []hook.OrphanDaemon) error {
	return r.Void(ctx, job, daemons)
}

func (r realExecutor) close() { r.Close() }

// dryRun changes nothing, and takes no lock.
type dryRun struct{}

func (dryRun) within(act func(context.Context) error) error            { return act(context.Background()) }
func (dryRun) take(context.Context, uint32) (func(), error)            { return func() {}, nil }
func (dryRun) undo(context.Context, lease.Lease) error                 { return nil }
func (dryRun) void(context.Context, uint32, []hook.OrphanDaemon) error { return nil }
func (dryRun) close()                                                  {}

// open makes a reaper. It reports a mistake in the site's file.
func open(paths site.Paths, job uint32, dry bool) (*reaper, error) {
	boot, err := site.BootID()
	if err != nil {
		return nil, err
	}
	self, err := site.CurrentProcess()
	if err != nil {
		return nil, err
	}
	_, standing := policyfile.ReadConfig(paths)
	r := &reaper{paths: paths, store: lease.OpenReadOnly(paths.Run(), boot), only: job, self: self, executor: dryRun{}}
	if standing.Err != nil {
		r.lines = append(r.lines, Result{Where: "site.hcl", Act: Leave, Why: fmt.Sprintf("it cannot be used: %v: %s", standing.Err, standing.Instead("the defaults hold")), Do: "mend it"})
	}
	if dry {
		return r, nil
	}
	opened, err := hook.OpenCleanup(paths)
	if err != nil {
		return nil, err
	}
	r.executor = realExecutor{opened}
	return r, nil
}
