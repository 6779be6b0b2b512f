// SPDX-License-Identifier: Apache-2.0

// Package epilog closes a lease: the one undo in the house. The prolog calls it too, for what it could not finish.
//
// The promise: it obeys the record and never the present policy; closing twice is closing once; everything is tried, and
// the lease is forgotten only when all of it succeeded. What is another job's by now is left alone.
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
	"golang.org/x/sys/unix"
)

// Daemons is what the epilog asks of control daemons. Every call ends by ctx's deadline.
type Daemons interface {
	Clients(context.Context, lease.Job, lease.Daemon) ([]site.Client, error)
	Terminate(context.Context, lease.Job, lease.Daemon, site.Client) error
	Quit(context.Context, lease.Job, lease.Daemon) error
	Kill(context.Context, lease.Job, lease.Daemon) error
	Processes(lease.Job, lease.Daemon) ([]site.Process, error)
}

// Guards is what the epilog asks of guards.
type Guards interface {
	End(ctx context.Context, job uint32) error
}

// ControlGroups is what the epilog asks of the node's control groups. Every call ends by ctx's deadline.
type ControlGroups interface {
	Empty(ctx context.Context, dir string) (ended int, err error)
}

// GPUs is what the epilog asks of the driver.
type GPUs interface {
	Mode(site.UUID) (site.Mode, error)
	SetMode(site.UUID, site.Mode) error
}

// Epilog closes leases.
type Epilog struct {
	Store   *lease.Store
	Daemons Daemons
	Guards  Guards
	Groups  ControlGroups
	GPUs    GPUs
	Log     zerolog.Logger
	Logs    string // the folder where logs are kept that outlive their job
	// Again is the command that runs the epilog of a job by hand, for the log.
	RerunCommand func(lease.Job) string
}

// The bounds of single steps. Together with a grant's grace they stay below the default deadline of 60 s, and each of
// them ends early enough before the whole's end that what must come after it still can.
const (
	lockTimeout      = 10 * time.Second
	terminateTimeout = 2 * time.Second
	quitTimeout      = 8 * time.Second
	emptyTimeout     = 5 * time.Second
	endReserve       = 5 * time.Second
)

// Close brings the node back to what it was before the job. It is safe where there was no prolog, when it is called
// twice, after a reboot, and beside a prolog of the same job, which it waits for and then takes over from.
func (c Epilog) Close(ctx context.Context, job uint32) error {
	turn, err := c.lockJob(ctx, job)
	if err != nil {
		return err
	}
	defer turn.Release()
	turn.MarkClosing()
	l, err := c.Store.Read(job)
	switch {
	case errors.Is(err, lease.ErrNotFound):
		return c.closeUnleased(ctx, job)
	case errors.Is(err, lease.ErrStaleBoot):
		c.Log.Info().Msg("the lease is of an earlier boot: nothing of it is left but files")
		return c.Store.PurgeStale(ctx, job)
	case err != nil:
		return c.logRepair(err, lease.Lease{Job: lease.Job{ID: job}})
	}
	return c.undo(ctx, l, c.Store.DeleteAndUnlock)
}

// closeUnleased removes the ticket of a job that was refused, and what a prolog left that died before its intent.
func (c Epilog) closeUnleased(ctx context.Context, job uint32) error {
	if err := errors.Join(c.Guards.End(ctx, job), c.Store.PurgeStale(ctx, job)); err != nil {
		return err
	}
	c.Log.Info().Msg("nothing to close")
	return nil
}

// lockJob waits for a prolog of the same job, then ends it: whatever it has done stands in the lease. Another epilog of
// the job, which an admin may have started, is waited for and never ended.
func (c Epilog) lockJob(ctx context.Context, job uint32) (*lease.JobLock, error) {
	patience, cancel := context.WithTimeout(ctx, atMostThird(ctx, lockTimeout))
	turn, err := c.Store.Lock(patience, job)
	cancel()
	var busy *lease.BusyError
	if !errors.As(err, &busy) {
		return turn, err
	}
	if !busy.Holder.Running() { // it has just gone, or is one that could not sign
		return c.Store.Lock(ctx, job)
	}
	if busy.Closing {
		c.Log.Warn().Int("pid", busy.Holder.PID).Msg("another epilog of this job is at work: waiting for it")
		return c.Store.Lock(ctx, job)
	}
	c.Log.Warn().Int("pid", busy.Holder.PID).Msg("a prolog of this job still runs: taking over")
	if err := busy.Holder.Kill(unix.SIGKILL); err != nil {
		return nil, err
	}
	return c.Store.Lock(ctx, job)
}

// atMostThird is at most d, and at most a third of what is left of ctx.
func atMostThird(ctx context.Context, d time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return d
	}
	return min(d, time.Until(deadline)/3)
}

// Undo undoes a lease; the caller has the job's turn, and keeps it. Every step is tried whatever became of the one before,
// but for two: modes and folders stay while a daemon may still be using them.
func (c Epilog) Undo(ctx context.Context, l lease.Lease) error {
	return c.undo(ctx, l, c.Store.Delete)
}

func (c Epilog) undo(ctx context.Context, l lease.Lease, forget func(context.Context, lease.Lease) error) error {
	began := time.Now()
	failed := c.Store.RemoveTicket(l.Job.ID)
	was := l.Phase
	l.Phase = lease.Closing
	noted := c.Store.Save(l) // a note for whoever comes after an epilog that dies: without it the rest can still be undone
	c.startNVML(l)
	before := logSizes(l)
	byItself, ended := c.endDaemons(ctx, l, was)
	failed = errors.Join(failed, ended)
	summary := summarise(l, before)
	summary.guarded(c.Store.ReadGuard(l.Job.ID))
	if ended == nil {
		failed = errors.Join(failed, c.Guards.End(ctx, l.Job.ID), c.restoreModes(l))
		if wantsLogs(l, failed != nil || was != lease.Opened || !byItself) {
			c.keepLogs(l)
		}
		failed = errors.Join(failed, c.Store.RemoveDirs(l.Job.ID))
	}
	if failed == nil {
		failed = forget(ctx, l)
	}
	if was != lease.Opening { // no rank has been told of it, so it is no job's sum
		c.logSummary(l, summary, failed == nil)
	}
	if failed != nil {
		return c.logRepair(errors.Join(failed, noted), l)
	}
	c.Log.Info().Str("step", "closed").Dur("ms", time.Since(began)).Msg("lease closed")
	return nil
}

// startNVML asks for a mode that is not needed yet: NVML takes 8 ms to initialise (measured), and it may take them while
// the daemons quit.
func (c Epilog) startNVML(l lease.Lease) {
	for _, held := range l.Held {
		if held.NewMode != "" {
			go c.GPUs.Mode(held.UUID)
			return
		}
	}
}

// endDaemons ends all of a lease's daemons at the same time: one that is wedged takes no time from the others. It says
// whether all of them lived until then and went when they were asked, with no client to be terminated.
func (c Epilog) endDaemons(ctx context.Context, l lease.Lease, was lease.Phase) (byItself bool, failed error) {
	type end struct {
		byItself bool
		err      error
	}
	results := make(chan end, len(l.Daemons))
	for _, d := range l.Daemons {
		go func() {
			byItself, err := c.endDaemon(ctx, l, was, d)
			results <- end{byItself, errors.Join(err, c.emptyGroup(ctx, d))}
		}()
	}
	byItself = true
	for range l.Daemons {
		one := <-results
		byItself, failed = byItself && one.byItself, errors.Join(failed, one.err)
	}
	return byItself, failed
}

// endDaemon drains a daemon's clients, has it quit, and kills what does not. Only the last step's failure is one: the
// others' are said and gone past. A daemon of a lease that never opened is asked nothing: no rank has been told of it, and
// that it does not answer may be why the lease did not open.
func (c Epilog) endDaemon(ctx context.Context, l lease.Lease, was lease.Phase, d lease.Daemon) (byItself bool, err error) {
	began := time.Now()
	lived := d.Proc.Running()
	if !lived { // never started, killed, or started by a prolog that died before it could say so
		there, err := c.Daemons.Processes(l.Job, d)
		if err != nil || len(there) == 0 {
			return false, err
		}
	}
	log := c.Log.With().Str("pipe_dir", d.PipeDir).Logger()
	if was != lease.Opening {
		terminated, err := c.drainAndQuit(ctx, l, d, log)
		byItself = lived && terminated == 0 && err == nil
		if err != nil {
			log.Warn().Err(err).Msg("the daemon does not end by itself: ending it")
		}
	}
	if !byItself {
		if err := c.end(ctx, l, d, log); err != nil {
			return false, err
		}
	}
	log.Info().Str("step", "daemon ended").Dur("ms", time.Since(began)).Send()
	return byItself, nil
}

// emptyGroup ends what is left in a daemon's control group: its user may have made the daemon start any program.
func (c Epilog) emptyGroup(ctx context.Context, d lease.Daemon) error {
	bound, cancel := context.WithTimeout(ctx, emptyTimeout)
	defer cancel()
	ended, err := c.Groups.Empty(bound, d.Group)
	if ended > 0 {
		c.Log.Warn().Str("group", d.Group).Int("processes", ended).Msg("processes were left in the daemon's control group: ended")
	}
	return err
}

// drainAndQuit asks a daemon to end its clients that stay, and itself.
func (c Epilog) drainAndQuit(ctx context.Context, l lease.Lease, d lease.Daemon, log zerolog.Logger) (terminated int, err error) {
	gentle, cancel := withReserve(ctx, endReserve)
	defer cancel()
	terminated, err = c.drain(gentle, l, d, log)
	if err == nil {
		err = c.quit(gentle, l, d)
	}
	return terminated, err
}

// end kills a daemon. What goes on to appear that only looks like it is the user's, and no reason to drain a node.
func (c Epilog) end(ctx context.Context, l lease.Lease, d lease.Daemon, log zerolog.Logger) error {
	err := c.Daemons.Kill(ctx, l.Job, d)
	if errors.Is(err, site.ErrImpostors) {
		log.Warn().Err(err).Uint32("uid", l.Job.UID).Msg("daemon ended: look-alike processes of the user remain")
		return nil
	}
	return err
}

func (c Epilog) quit(ctx context.Context, l lease.Lease, d lease.Daemon) error {
	bound, cancel := context.WithTimeout(ctx, quitTimeout)
	defer cancel()
	return c.Daemons.Quit(bound, l.Job, d)
}

// withReserve is ctx, ended early enough to leave d.
func withReserve(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-d))
}

// drain gives clients their grace and then has the daemon terminate those that stay. A client that is stopped is passed
// over: to terminate it would wedge the daemon (measured), and it has no work in flight by then.
func (c Epilog) drain(ctx context.Context, l lease.Lease, d lease.Daemon, log zerolog.Logger) (terminated int, err error) {
	clients, err := c.await(ctx, l, d, time.Duration(l.DrainGrace))
	if err != nil || len(clients) == 0 {
		return 0, err
	}
	for _, client := range clients {
		if stopped(client.PID) {
			log.Warn().Int("client", client.PID).Msg("client is stopped: it ends with the server")
			return terminated, fmt.Errorf("client %d is stopped", client.PID)
		}
		bound, cancel := context.WithTimeout(ctx, terminateTimeout)
		err := c.Daemons.Terminate(bound, l.Job, d, client)
		cancel()
		if err != nil {
			return terminated, err
		}
		terminated++
		log.Warn().Int("client", client.PID).Msg("client terminated: it outlived the job")
	}
	return terminated, nil
}

// await polls until no client is left or the grace is over, and returns who is.
func (c Epilog) await(ctx context.Context, l lease.Lease, d lease.Daemon, grace time.Duration) ([]site.Client, error) {
	bound, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	pause := 20 * time.Millisecond
	for {
		clients, err := c.Daemons.Clients(ctx, l.Job, d)
		if err != nil || len(clients) == 0 {
			return nil, err
		}
		if !site.Sleep(bound, pause) {
			return clients, nil
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}

func stopped(pid int) bool {
	stat, err := site.ReadStat(pid)
	return err == nil && (stat.State == 'T' || stat.State == 't')
}

// restoreModes sets back the modes that the record says were set. A device that is another job's by now is that job's
// to care for, and a mode that is neither what was set nor what was before was set by an admin since: both stay.
func (c Epilog) restoreModes(l lease.Lease) error {
	var failed error
	for _, held := range l.Held {
		if held.NewMode == "" {
			continue
		}
		if err := c.restoreMode(l.Job.ID, held); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func (c Epilog) restoreMode(job uint32, held lease.ClaimedGPU) error {
	holder, taken, err := c.Store.Owner(held.UUID)
	if err != nil {
		return err
	}
	log, began := c.Log.With().Str("gpu", string(held.UUID)).Logger(), time.Now()
	if taken && holder != job {
		log.Warn().Uint32("holder", holder).Msg("the GPU is another job's by now: its mode stays")
		return nil
	}
	mode, err := c.GPUs.Mode(held.UUID)
	if err != nil {
		return err
	}
	if mode == held.OriginalMode {
		return nil
	}
	if mode != held.NewMode {
		log.Warn().Str("mode", string(mode)).Msg("somebody else set the compute mode since: it stays")
		return nil
	}
	if err := c.GPUs.SetMode(held.UUID, held.OriginalMode); err != nil {
		return err
	}
	mode, err = c.GPUs.Mode(held.UUID)
	if err != nil {
		return err
	}
	if mode != held.OriginalMode {
		return fmt.Errorf("cannot restore compute mode of %s: set to %s, and it reads %s", held.UUID, held.OriginalMode, mode)
	}
	log.Info().Str("step", "mode restored").Str("mode", string(mode)).Dur("ms", time.Since(began)).Send()
	return nil
}

// logRepair logs what an admin does by hand, exactly, and returns the failure. To kill the daemon is not among it: the
// epilog has asked it to quit and has then tried SIGKILL, and does both again.
func (c Epilog) logRepair(failed error, l lease.Lease) error {
	var commands []string
	for _, held := range l.Held {
		if held.NewMode != "" {
			commands = append(commands, fmt.Sprintf("nvidia-smi -i %s -c %s", held.UUID, strings.ToUpper(string(held.OriginalMode))))
		}
	}
	commands = append(commands, c.RerunCommand(l.Job))
	c.Log.Error().Err(failed).Strs("repair", commands).Msg("the node is not proved clean: the lease is kept")
	return fmt.Errorf("%w: the lease is kept; to repair: %s", failed, strings.Join(commands, "; "))
}
