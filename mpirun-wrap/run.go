// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/lease/direct"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

// run is one run of mpirun-wrap or of task-prolog: its input, and its findings. Task, launch and ticket are read once.
type run struct {
	Paths   site.Paths
	Options Options
	Program []string // with its arguments; none if there is nothing to run
	PID     int      // of the process that becomes the rank
	Env     slurm.Env
	Out     io.Writer
	Err     io.Writer
	MPS     MPS         // nil for task-prolog
	giveUp  func(error) // reports an error and ends the program

	environ   []string    // the environment of the program, without MPS's variables
	told      string      // the value of toldVariable
	task      launch.Task // as read, also if the rank then takes a slot
	taskErr   error
	taskRead  bool
	launch    string // "" until it is asked for
	rank      Rank
	store     *lease.Store
	ownStore  *lease.Store // of the user's own daemon, nil for none
	ticket    lease.Ticket
	placement *Placement
}

// newRun returns the run of a process with this environment, which has lines NAME=value.
func newRun(pid int, environ []string, out, errs io.Writer) *run {
	r := &run{PID: pid, Env: slurm.NewEnv(environ), Out: out, Err: errs, environ: environ}
	if value, set := r.Env[toldVariable]; set {
		delete(r.Env, toldVariable)
		r.told, r.environ = value, without(environ, toldVariable+"=")
	}
	return r
}

// prepare does all that a rank needs before its program runs, and returns the program's environment. If MPS is switched
// off, the program runs without MPS. It also does so if the site lets the job run without MPS, and then one rank of the
// node reports that. After a dry run the environment is nil.
func (r *run) prepare() (environ []string, err error) {
	if r.Options.Off && !r.Options.DryRun {
		return r.switchedOff()
	}
	if err := r.readRank(); err != nil {
		return nil, err
	}
	if err = r.readTicket(); err == nil {
		err = r.place()
	}
	if err != nil {
		return r.runRefused(err)
	}
	if launch.WithoutGPU(r.Env, r.task) {
		return r.runWithoutGPU(), nil
	}
	m := r.messages()
	m.remark(r.Env, r.placement, r.Options)
	if r.Options.OwnDaemon && r.Options.Report && r.ownStore == nil {
		m.once("own", errors.New("--own starts no daemon: the site's prolog has started one for this job"))
	}
	if r.Options.DryRun {
		return nil, r.placement.report(r.Out, r.Options.JSON, true)
	}
	if err := r.placement.waitReady(context.Background(), r.serverStatus, m.waits("waits"), r.giveUp); err != nil {
		return r.runUnavailable(err)
	}
	r.waitRoom(m.waits("room"))
	m.warnOfNeighbour(r.placement)
	if r.Options.Report {
		err = r.placement.report(r.Err, r.Options.JSON, false)
	}
	return r.placement.environment(r.environ), err
}

// place takes a slot if the rank wants one, and places the rank.
func (r *run) place() (err error) {
	if r.rank.Options.Slots > 0 && r.ticket.RefusalReason == "" {
		m := r.messages()
		if n := r.task.LocalSize; n > 1 && r.Options.Slots > n {
			m.once("idle", fmt.Errorf("--slots=%d is more than the %d ranks of this step on the node: if no other step takes "+
				"the rest, a part of the GPUs stays unused: leave out --slots", r.Options.Slots, n))
		}
		waits := func(holders string) {
			m.once("slots", fmt.Errorf("waiting for a slot: all %d are taken (--slots-wait=0 does not wait); %s",
				r.rank.Options.Slots, holders))
		}
		if r.rank, err = takeSlot(context.Background(), r.ticket, r.rank, waits); err != nil {
			return err
		}
	}
	r.placement, err = Place(r.ticket, r.rank)
	return err
}

// readTicket reads the ticket of the job's prolog. If there is none, the user's own daemon has one, if the user wants
// that.
func (r *run) readTicket() (err error) {
	if err = r.findTicket(); err == nil || r.MPS == nil || !r.Options.OwnDaemon {
		return err
	}
	if _, none := errors.AsType[noTicketError](err); !none {
		return err
	}
	return r.join()
}

func (r *run) join() (err error) {
	r.ticket, r.ownStore, err = r.MPS.Join(context.Background(), r.Paths.Root, r.environ, r.task, r.rank.Binding)
	r.store = r.ownStore
	return err
}

func (r *run) findTicket() error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	r.store = lease.OpenReadOnly(r.Paths.Run(), boot)
	r.store.Direct = direct.Read
	r.ticket, err = findTicket(r.store, r.task)
	return err
}

// serverStatus asks the daemon for the state of a server.
func (r *run) serverStatus(ctx context.Context, server int) (string, error) {
	return r.MPS.ServerStatus(ctx, r.ticket, r.placement.Daemon, server)
}

// waitRoom waits while ranks that have ended take room on this rank's GPU. The guard limits the wait to the policy's
// hold. It returns the time that it has waited.
func (r *run) waitRoom(waits func(why string)) time.Duration {
	read := func() (lease.Room, error) { return r.store.ReadRoom(r.ticket.Guarded()) }
	return r.placement.waitRoom(context.Background(), read, waits)
}

// errOff refuses SLURM_MPS=off for a job with GPUs that accept only MPS.
var errOff = errors.New("SLURM_MPS=off: the GPUs of this job are in EXCLUSIVE_PROCESS mode, so a program without MPS " +
	"fails with CUDA error 46: submit the job without --constraint=mps, or leave out SLURM_MPS=off")

// switchedOff returns the environment of a program for which the user has switched MPS off.
func (r *run) switchedOff() ([]string, error) {
	if r.readTask(); r.taskErr != nil {
		return r.environ, nil
	}
	if err := r.findTicket(); err == nil && r.ticket.Exclusive {
		return nil, errOff
	}
	return without(r.environ, "CUDA_MPS_"), nil
}

// runRefused decides about a rank that has no placement. It runs without MPS if the job has none and the site's policy
// allows that.
func (r *run) runRefused(err error) ([]string, error) {
	var refused *refusedError
	if !errors.As(err, &refused) || !refused.Without || r.Options.DryRun {
		return nil, err
	}
	if r.task.LocalRank == 0 {
		r.messages().print(fmt.Errorf("running without MPS, as this site's policy allows: %w", err))
	}
	return r.environ, nil
}

// runWithoutGPU returns the environment in a step without a GPU. CUDA shows the program no GPU, so it cannot run
// outside of MPS.
func (r *run) runWithoutGPU() []string {
	if r.Options.DryRun || r.Options.Report {
		r.messages().print(errors.New("running without a GPU and MPS: this step has none (srun --gres=none)"))
	}
	if r.Options.DryRun {
		return nil
	}
	return withGPUs(r.environ, "")
}

// runUnavailable decides about a rank that cannot use MPS. The rank runs without MPS if the site's policy allows that,
// and if the mode of the GPU allows more than one process. Otherwise the result is an error.
func (r *run) runUnavailable(err error) ([]string, error) {
	var off *unavailableError
	if !errors.As(err, &off) || !r.ticket.RunWithoutMPS {
		return nil, err
	}
	if r.ticket.Exclusive {
		return nil, fmt.Errorf("%w; the policy's run_without does not help: the GPU is in EXCLUSIVE_PROCESS mode, "+
			"in which one process alone could use it", err)
	}
	r.messages().once("without", fmt.Errorf("running without MPS, as this site's policy allows: %s", off.summary()))
	return withGPUs(r.environ, r.placement.visible()), nil
}
