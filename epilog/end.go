// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// daemonEnd is the end of one daemon, or of all daemons of a lease together.
type daemonEnd struct {
	byItself   bool // the daemon was alive and ended when it was asked, and no client was terminated
	clients    int  // those that ran when the epilog began
	terminated int  // clients that the epilog ended by terminate_client
	gone       bool // the daemon had ended before the job
}

// endAll ends a lease's daemons and its guard. When no daemon has a client any more, nothing needs the guard, and it
// may take a while to close the files of dead clients. So it then ends beside the daemons. If a daemon may have clients,
// the guard ends after the daemons, and stays if one of them stays.
func (e Epilog) endAll(ctx context.Context, l lease.Lease, was lease.Phase) (end daemonEnd, daemons, guard error) {
	drained, guardEnded := make(chan bool, len(l.Daemons)), make(chan error, 1)
	go func() {
		all := true
		for range l.Daemons {
			all = <-drained && all
		}
		if all {
			guardEnded <- e.Guards.End(ctx, l.Job.ID)
		}
		close(guardEnded)
	}()
	end, daemons = e.endDaemons(ctx, l, was, drained)
	guard, ended := <-guardEnded
	if !ended && daemons == nil {
		guard = e.Guards.End(ctx, l.Job.ID)
	}
	return end, daemons, guard
}

// endDaemons ends all of a lease's daemons side by side, so that a stuck daemon takes no time from the others.
// Each daemon sends to drained whether it has no client any more.
func (e Epilog) endDaemons(
	ctx context.Context, l lease.Lease, was lease.Phase, drained chan<- bool,
) (all daemonEnd, failed error) {
	ends := make([]daemonEnd, len(l.Daemons))
	failed = wait.Each(len(l.Daemons), func(n int) (err error) {
		ends[n], err = e.endDaemon(ctx, l, was, l.Daemons[n], drained)
		return errors.Join(err, e.emptyGroup(ctx, l, l.Daemons[n], err == nil))
	})
	all.byItself = true
	for _, end := range ends {
		all.byItself = all.byItself && end.byItself
		all.clients += end.clients
		all.terminated += end.terminated
		all.gone = all.gone || end.gone
	}
	return all, failed
}

// endDaemon drains a daemon's clients, tells it to quit, and kills it if it stays. Only a failure of the last step is
// returned; the others are logged. A daemon of a lease that never opened is not asked anything: no rank knows it, and
// the lease may have failed because it does not answer.
func (e Epilog) endDaemon(
	ctx context.Context, l lease.Lease, was lease.Phase, d lease.Daemon, drained chan<- bool,
) (end daemonEnd, err error) {
	began := time.Now()
	lived := d.Proc.Running()
	if !lived { // never started, killed, or started by a prolog that died before it recorded the daemon
		if end.gone = was == lease.Opened; end.gone {
			e.Log.Warn().Str("pipe_dir", d.PipeDir).Int("pid", d.Proc.PID).Msg("the daemon had ended before the job")
		}
		found, err := e.Daemons.Processes(l.Job, d)
		if len(found) == 0 {
			drained <- err == nil
			return end, err
		}
	}
	log := e.Log.With().Str("pipe_dir", d.PipeDir).Logger()
	if was == lease.Opening {
		drained <- true
	} else {
		gone := end.gone
		end, err = e.drainAndQuit(ctx, l, d, log, drained)
		end.gone = gone
		end.byItself = lived && end.terminated == 0 && err == nil
		if err != nil {
			log.Warn().Err(err).Msg("the daemon does not end by itself: ending it")
		}
	}
	if !end.byItself {
		if err := e.end(ctx, l, d, log); err != nil {
			return end, err
		}
	}
	log.Info().Str("step", "daemon ended").Dur("ms", time.Since(began)).Send()
	return end, nil
}

// maxNamed limits the log lines about processes that do not end.
const maxNamed = 8

// emptyGroup ends the processes in a daemon's control group. The job's user may have made the daemon start any
// program, also one that waits for a file system of the user's, which no signal ends. If the daemon and its servers are
// known to have ended, such a program is no reason to drain the node: it has no part in MPS.
func (e Epilog) emptyGroup(ctx context.Context, l lease.Lease, d lease.Daemon, daemonEnded bool) error {
	bound, cancel := context.WithTimeout(ctx, emptyTimeout)
	defer cancel()
	ended, err := e.Groups.Empty(bound, d.Group)
	if ended > 0 {
		e.Log.Warn().Str("group", d.Group).Int("processes", ended).Msg("processes were left in the daemon's control group: told to end")
	}
	var left *site.LeftInGroupError
	if !daemonEnded || !errors.As(err, &left) {
		return err
	}
	for _, pid := range left.PIDs[:min(len(left.PIDs), maxNamed)] {
		name, _ := proc.Name(pid)
		uid, known := proc.Owner(pid)
		if !known {
			uid = l.Job.UID
		}
		e.Log.Warn().Str("group", d.Group).Int("pid", pid).Str("name", name).Uint32("uid", uid).Str("user", l.Job.User).
			Msg("a process of the user, neither daemon nor server, stays in the daemon's control group: no signal ends it")
	}
	return nil
}

// emptyGuardGroup ends what the job's guard has left, as its takers, and removes their group. Only our own processes are
// in it, and the guard has ended: one that the kernel holds is no reason to drain the node.
func (e Epilog) emptyGuardGroup(ctx context.Context, l lease.Lease) {
	bound, cancel := context.WithTimeout(ctx, emptyTimeout)
	defer cancel()
	if _, err := e.Groups.Empty(bound, l.GuardGroup); err != nil {
		e.Log.Warn().Err(err).Str("group", l.GuardGroup).Msg("the guard's control group stays")
	}
}

// drainAndQuit tells a daemon to end its remaining clients, and then to quit.
func (e Epilog) drainAndQuit(
	ctx context.Context, l lease.Lease, d lease.Daemon, log zerolog.Logger, drained chan<- bool,
) (end daemonEnd, err error) {
	gentle, cancel := withReserve(ctx, endReserve)
	defer cancel()
	end, err = e.drain(gentle, l, d, log)
	if drained <- err == nil; err != nil {
		return end, err
	}
	bound, stop := context.WithTimeout(gentle, quitTimeout)
	defer stop()
	return end, e.Daemons.Quit(bound, l.Job, d)
}

// end kills a daemon. Processes of the user that only look like a daemon are not a reason to drain a node.
func (e Epilog) end(ctx context.Context, l lease.Lease, d lease.Daemon, log zerolog.Logger) error {
	err := e.Daemons.Kill(ctx, l.Job, d)
	if errors.Is(err, site.ErrImpostors) {
		log.Warn().Err(err).Uint32("uid", l.Job.UID).Msg("daemon ended: look-alike processes of the user remain")
		return nil
	}
	return err
}

// withReserve returns ctx, ended early by d.
func withReserve(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-d))
}

// drain gives clients their grace and then terminates those that stay. It does not terminate a stopped client,
// because that makes the daemon hang (measured), and a stopped client has no work in flight by then.
func (e Epilog) drain(ctx context.Context, l lease.Lease, d lease.Daemon, log zerolog.Logger) (end daemonEnd, err error) {
	first, left, err := e.await(ctx, l, d, time.Duration(l.DrainGrace))
	end.clients = first
	if err != nil {
		return end, err
	}
	for _, client := range left {
		if status, err := proc.ReadStatus(client.PID); err == nil && status.Stopped() {
			log.Warn().Int("client", client.PID).Msg("client is stopped: it ends with the server")
			return end, fmt.Errorf("client %d is stopped", client.PID)
		}
		bound, cancel := context.WithTimeout(ctx, terminateTimeout)
		err := e.Daemons.Terminate(bound, l.Job, d, client)
		cancel()
		if err != nil {
			return end, err
		}
		end.terminated++
		log.Warn().Int("client", client.PID).Msg("client terminated: it outlived the job")
	}
	return end, nil
}

// await polls until no client is left or the grace is over. It returns the number of clients at first, and those that
// are left.
func (e Epilog) await(
	ctx context.Context, l lease.Lease, d lease.Daemon, grace time.Duration,
) (first int, left []site.Client, err error) {
	bound, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	pause := 20 * time.Millisecond
	for {
		left, err = e.Daemons.Clients(ctx, l.Job, d)
		first = max(first, len(left))
		if err != nil || len(left) == 0 || !wait.Sleep(bound, pause) {
			return first, left, err
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}
