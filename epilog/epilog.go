// SPDX-License-Identifier: Apache-2.0

// Package epilog closes a lease. There is no other undo: the prolog calls it too, after a failure.
//
// It follows the record and never the current policy. Closing twice is the same as closing once. It tries every step,
// and deletes the lease only if all steps succeeded. It does not touch what belongs to another job by now.
package epilog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// Daemons is what the epilog needs of control daemons. Every call ends by ctx's deadline.
type Daemons interface {
	Clients(context.Context, lease.Job, lease.Daemon) ([]site.Client, error)
	Terminate(context.Context, lease.Job, lease.Daemon, site.Client) error
	Quit(context.Context, lease.Job, lease.Daemon) error
	Kill(context.Context, lease.Job, lease.Daemon) error
	Processes(lease.Job, lease.Daemon) ([]proc.Process, error)
}

// Guards is what the epilog needs of guards.
type Guards interface {
	End(ctx context.Context, job uint32) error
}

// controlGroups is what the epilog needs of the node's control groups. Every call ends by ctx's deadline.
type controlGroups interface {
	Empty(ctx context.Context, dir string) (ended int, err error)
}

// GPUs is what the epilog needs of the driver.
type GPUs interface {
	Mode(site.UUID) (site.Mode, error)
	SetMode(site.UUID, site.Mode) error
}

// Epilog closes leases.
type Epilog struct {
	Store   *lease.Store
	Daemons Daemons
	Guards  Guards
	Groups  controlGroups
	GPUs    GPUs
	Log     zerolog.Logger
	Logs    string // the folder of the logs that outlive their job
	Reports string // the folder of the reports that are kept
	// RerunCommand returns the command that runs the epilog of a job by hand, for the log.
	RerunCommand func(lease.Job) string

	keptFor *lease.Lease // whose logs those of a shared daemon are; nil for the lease's own
}

// The bounds of single steps. Together with a grant's grace they stay below the default deadline of 60 s. Each step
// ends early enough that the later steps still have time.
const (
	lockTimeout      = 10 * time.Second
	terminateTimeout = 2 * time.Second
	quitTimeout      = 8 * time.Second
	emptyTimeout     = 5 * time.Second
	endReserve       = 5 * time.Second
)

// Close restores the node to its state before the job. It is safe without a prolog, twice, after a reboot, and beside
// a prolog of the same job: it waits for that prolog and then takes over.
func (e Epilog) Close(ctx context.Context, job uint32) error {
	lock, err := e.lockJob(ctx, job)
	if err != nil {
		return err
	}
	defer lock.Release()
	lock.MarkClosing()
	l, err := e.Store.Read(job)
	if err == nil && lease.IsShared(job) {
		err = e.checkUnused(job)
	}
	switch {
	case errors.Is(err, lease.ErrNotFound):
		return e.closeUnleased(ctx, job)
	case errors.Is(err, lease.ErrStaleBoot):
		e.Log.Info().Msg("the lease is from before a reboot: only its files are left")
		return e.Store.PurgeStale(ctx, job)
	case err != nil:
		return e.logRepair(err, lease.Lease{Job: lease.Job{ID: job}})
	}
	err = e.undo(ctx, l, e.Store.DeleteAndUnlock)
	if err != nil && l.NoMPS {
		e.Log.Warn().Msg("a recorder that does not end harms no job: the node is not drained, and mpsctl reap ends it")
		return nil
	}
	return err
}

// closeUnleased removes the ticket of a job that was refused, and the files of a prolog that died before it wrote a
// lease.
func (e Epilog) closeUnleased(ctx context.Context, job uint32) error {
	if err := errors.Join(e.Guards.End(ctx, job), e.Store.PurgeStale(ctx, job)); err != nil {
		return err
	}
	e.Log.Info().Msg("nothing to close")
	return nil
}

// lockJob waits for a prolog of the same job and then ends it, because the lease lists everything that it has done.
// It waits for another epilog of the job, which an admin may have started, and never ends it.
func (e Epilog) lockJob(ctx context.Context, job uint32) (*lease.JobLock, error) {
	first, cancel := context.WithTimeout(ctx, wait.AtMostThird(ctx, lockTimeout))
	lock, err := e.Store.Lock(first, job)
	cancel()
	var busy *lease.BusyError
	if !errors.As(err, &busy) {
		return lock, err
	}
	if !busy.Holder.Running() { // it has just ended, or it could not write its pid
		return e.Store.Lock(ctx, job)
	}
	if busy.Closing {
		e.Log.Warn().Int("pid", busy.Holder.PID).Msg("another epilog of this job is at work: waiting for it")
		return e.Store.Lock(ctx, job)
	}
	e.Log.Warn().Int("pid", busy.Holder.PID).Msg("killing the job's prolog, which still holds the lock")
	if err := busy.Holder.Kill(unix.SIGKILL); err != nil {
		return nil, err
	}
	return e.Store.Lock(ctx, job)
}

// Undo undoes a lease. The caller holds the job's lock, and keeps it. Every step is tried, whatever happened before
// it. There are two exceptions: modes and folders stay while a daemon may still use them.
func (e Epilog) Undo(ctx context.Context, l lease.Lease) error {
	return e.undo(ctx, l, e.Store.Delete)
}

func (e Epilog) undo(ctx context.Context, l lease.Lease, forget func(context.Context, lease.Lease) error) error {
	began := time.Now()
	failed := e.Store.RemoveTicket(l.Job.ID)
	was := l.Phase
	noted := e.Store.SetPhase(&l, lease.Closing) // for the next epilog if this one dies; a failure does not stop the undo
	e.startNVML(l)
	var report keeping
	if l.Joined != 0 {
		if was != lease.Opening {
			report = e.keepReport(l, nil) // before the last member removes it
		}
		failed = errors.Join(failed, e.leave(ctx, &l))
	}
	end, ended, guardEnded := e.endAll(ctx, l, was)
	failed = errors.Join(failed, ended, guardEnded)
	var guard *lease.GuardState // its last state, if it has ended; nil if there is none
	if last, err := e.Store.ReadGuard(l.Job.ID); err == nil {
		guard = &last
	}
	if ended == nil {
		if was != lease.Opening && report.kept == nil && !lease.IsShared(l.Job.ID) { // its jobs have reports
			report = e.keepReport(l, guard) // before the job's folder is removed
		}
		failed = errors.Join(failed, e.restoreModes(l))
		if wantsLogs(l, failed != nil || was != lease.Opened || !end.byItself) {
			e.keepLogs(l)
		}
		failed = errors.Join(failed, e.Store.RemoveDirs(l.Job))
		e.logBusy(l.Job)
	}
	if guardEnded == nil && l.GuardGroup != "" {
		e.emptyGuardGroup(ctx, l)
	}
	if failed == nil {
		failed = forget(ctx, l)
	}
	if was != lease.Opening { // no rank knew of it, so there is nothing to add up
		e.wait(report)
		e.logSummary(l, end, guard, report.Report, failed == nil)
	}
	if failed != nil {
		return e.logRepair(errors.Join(failed, noted), l)
	}
	e.Log.Info().Str("step", "closed").Dur("ms", time.Since(began)).Msg("lease closed")
	return nil
}

// logBusy logs that the job's file system is in use by processes outside of the job. It fails no epilog.
func (e Epilog) logBusy(job lease.Job) {
	all, err := e.Store.Busy()
	if err != nil {
		e.Log.Warn().Err(err).Send()
	}
	for _, b := range all {
		if b.Job == job.ID {
			e.Log.Warn().Uint32("uid", b.UID).Msg(b.String())
		}
	}
}

// logRepair logs the exact commands for an admin, and returns the failure. The commands do not kill the daemon,
// because the epilog has told it to quit and has then tried SIGKILL, and does both again.
func (e Epilog) logRepair(failed error, l lease.Lease) error {
	var commands []string
	for _, gpu := range l.GPUs {
		if gpu.NewMode != "" {
			commands = append(commands, fmt.Sprintf("nvidia-smi -i %s -c %s", gpu.UUID, strings.ToUpper(string(gpu.OriginalMode))))
		}
	}
	commands = append(commands, e.RerunCommand(l.Job))
	e.Log.Error().Err(failed).Strs("repair", commands).Msg("cannot prove that the node is clean: the lease is kept")
	return fmt.Errorf("%w: the lease is kept; to repair: %s", failed, strings.Join(commands, "; "))
}
