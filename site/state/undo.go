// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"

	"github.com/slurm-mps/slurm-mps/site/lease"
)

// Action is what reap does about something, as a word for programs.
type Action string

const (
	Close  Action = "close"  // undo a lease
	remove Action = "remove" // delete files without a lease
	keep   Action = "keep"   // the job runs
	Leave  Action = "leave"  // an admin must decide
)

// Executor makes the changes of reap. The executor of a dry run changes nothing.
type Executor interface {
	// Within runs a function for one job with a deadline. If the function hangs past the deadline, Within returns an
	// error and does not wait longer.
	Within(func(context.Context) error) error
	// Lock takes a job's lock. Another holder is a *lease.BusyError.
	Lock(ctx context.Context, job uint32) (release func(), err error)
	// Undo undoes a lease as the epilog does. The caller holds the job's lock.
	Undo(context.Context, lease.Lease) error
	// Void ends the daemons of a job without a lease, and removes the job's files. The caller holds the job's lock.
	Void(ctx context.Context, job uint32, daemons []lease.OrphanDaemon) error
	// FreeHeld frees the memory of closed jobs' file systems, as far as it can.
	FreeHeld() error
}

// dryRun changes nothing, and takes no lock.
type dryRun struct{}

func (dryRun) Within(act func(context.Context) error) error             { return act(context.Background()) }
func (dryRun) Lock(context.Context, uint32) (func(), error)             { return func() {}, nil }
func (dryRun) Undo(context.Context, lease.Lease) error                  { return nil }
func (dryRun) Void(context.Context, uint32, []lease.OrphanDaemon) error { return nil }
func (dryRun) FreeHeld() error                                          { return nil }
