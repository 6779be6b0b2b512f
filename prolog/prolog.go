// SPDX-License-Identifier: Apache-2.0

// Package prolog opens a lease: it prepares a node for a job to which the policy grants MPS.
//
// It writes the record before the first change, and undoes a failure by that record. A user's mistake never makes a
// prolog fail, because its exit code would drain the node: the job's ticket has the reason.
package prolog

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Daemons is what the prolog needs of control daemons. Every call ends by ctx's deadline.
type Daemons interface {
	UserGroups(context.Context, lease.Job) ([]uint32, error)
	Start(context.Context, lease.Job, lease.Daemon) (proc.Process, error)
	Configure(context.Context, lease.Job, lease.Daemon, lease.Limits) error
	Ping(context.Context, lease.Job, lease.Daemon) error
	// Fit returns how many clients fit on each GPU of a daemon with so many GPUs. It fails if none fits.
	Fit(gpus int) (clients int, err error)
}

// Guards is what the prolog needs of guards. Every call ends by ctx's deadline.
type Guards interface {
	Start(ctx context.Context, job uint32) (proc.Process, error)
	Running(job uint32) (proc.Process, error)
}

// controlGroups is what the prolog needs of the node's control groups.
type controlGroups interface {
	Of(job uint32, n int) (dir string, err error)
	OfGuard(job uint32) (dir string)
	Make(dir string) error
}

// GPUs is what the prolog needs of the driver.
type GPUs interface {
	Devices() ([]site.Device, error)
	ByMinor(int) (site.Device, error)
	Find(site.UUID) (site.Device, error)
	Capability(site.UUID) (major, minor int, err error)
	Mode(site.UUID) (site.Mode, error)
	SetMode(site.UUID, site.Mode) error
	Driver() (string, error)
}

// Slurm is what the prolog needs of Slurm's files.
type Slurm interface {
	Gres(slurm.Job) (slurm.Gres, error)
	Features(slurm.Job) ([]string, error)
}

// Prolog opens leases.
type Prolog struct {
	Store      *lease.Store
	Daemons    Daemons
	Guards     Guards
	Groups     controlGroups
	GPUs       GPUs
	Listed     func() ([]site.Device, error) // the node's GPUs without their MIG instances, by the driver's files
	Slurm      Slurm
	GroupNames func(context.Context, []uint32) ([]string, error) // the names of groups
	Undo       func(context.Context, lease.Lease) error          // undoes a lease: the epilog's
	Site       lease.Settings                                    // what site.hcl gives the daemons and guards of all jobs
	Log        zerolog.Logger
	Clock      func() time.Time
}

// Outcome is how an Open ended. After all outcomes except Failed the job starts.
type Outcome string

// The outcomes of Open.
const (
	NotRequested  Outcome = "not asked" // the job does not ask for MPS
	opened        Outcome = "opened"
	adopted       Outcome = "adopted" // the job's lease is open and its daemons serve: nothing has changed
	refused       Outcome = "refused" // the job cannot have MPS, and its ticket has the reason
	RanWithoutMPS Outcome = "without" // the node failed, and the policy lets the job run without MPS
	Failed        Outcome = "failed"  // the node failed: drain it
)

// Open decides on a job that asks for MPS, and makes its lease. The error is nil for all outcomes except RanWithoutMPS
// and Failed.
func (p Prolog) Open(ctx context.Context, job slurm.Job, rules policy.Policy) (Outcome, error) {
	a := admission{
		job:     job,
		groups:  sync.OnceValues(func() ([]uint32, error) { return p.Daemons.UserGroups(ctx, leaseJob(job)) }),
		resolve: sync.OnceValues(func() (resolution, error) { return p.resolve(job) }),
	}
	if err := p.decide(ctx, &a, rules); err != nil {
		return Failed, err
	}
	p.Log = p.Log.With().Str("rule", a.verdict.Rule).Logger()
	return p.admit(ctx, a)
}

func (p Prolog) admit(ctx context.Context, a admission) (Outcome, error) {
	lock, err := p.Store.Lock(ctx, a.job.ID)
	if err != nil {
		return Failed, err
	}
	defer lock.Release()
	outcome, err := p.leaseOrRefuse(ctx, a)
	if err == nil {
		return outcome, nil
	}
	return p.onFailure(a, err)
}

// WithoutMPS reports whether the job starts without MPS.
func (o Outcome) WithoutMPS() bool { return o == NotRequested || o == refused || o == RanWithoutMPS }

// Requested reports whether a job asks for MPS. Without a trigger only the rules decide that, and they need no
// look-up for that.
func Requested(job slurm.Job, rules policy.Policy) bool {
	_, asks := rules.Requested(policy.Request{Job: job.Job})
	if asks && rules.Trigger == nil {
		return rules.Decide(policy.Request{Job: job.Job}).Requested
	}
	return asks
}

// admission is one job in the prolog: the verdict, and what is looked up only once.
type admission struct {
	job     slurm.Job
	request policy.Request
	verdict policy.Decision
	groups  func() ([]uint32, error)
	resolve func() (resolution, error)
}

// dirtyError is a failure that left the node changed. After it no policy lets a job run.
type dirtyError struct{ error }

func (e dirtyError) Unwrap() error { return e.error }

func isDirty(err error) bool {
	var dirty dirtyError
	return errors.As(err, &dirty)
}

func (p Prolog) onFailure(a admission, failure error) (Outcome, error) {
	if a.verdict.Grant.OnFailure != policy.FailRunWithout || isDirty(failure) {
		return Failed, failure
	}
	ticket := lease.Ticket{Job: leaseJob(a.job), Rule: a.verdict.Rule, RefusalReason: failure.Error(), RunWithoutMPS: true}
	if err := p.Store.WriteTicket(ticket); err != nil {
		return Failed, errors.Join(failure, err)
	}
	return RanWithoutMPS, failure
}

// leaseOrRefuse adopts or undoes an earlier lease of the job. Then it makes a lease, or a ticket that refuses the job.
func (p Prolog) leaseOrRefuse(ctx context.Context, a admission) (Outcome, error) {
	before, err := p.earlierLease(ctx, a.job)
	if err != nil {
		return Failed, err
	}
	found := resolution{refusal: a.verdict.Denied}
	if found.refusal == "" {
		go a.groups() // while the driver is asked for the GPUs, because both take time
		err = p.step("gpus", func() (err error) { found, err = a.resolve(); return err })
	}
	if err != nil {
		return Failed, err
	}
	if found.refusal == "" {
		if found.refusal, err = p.singleServer(found); err != nil {
			return Failed, err
		}
	}
	if before != nil {
		if serving, ok := p.adoptable(ctx, a, *before, found); ok {
			p.guardAdopted(ctx, serving)
			return adopted, p.republish(*before, serving, a, found.devices)
		}
		if err := p.undo(*before); err != nil {
			return Failed, dirtyError{err}
		}
	}
	if found.refusal == "" {
		much, err := p.Store.TooBusy(a.job.UID)
		if err != nil {
			return Failed, err
		}
		if much {
			found.refusal = "your processes on this node keep files of four earlier jobs in use: end these processes: ps -fu $USER"
		}
	}
	if found.refusal != "" {
		p.Log.Warn().Str("reason", found.refusal).Msg("refused: the ticket has the reason")
		return refused, p.Store.WriteTicket(lease.Ticket{Job: leaseJob(a.job), Rule: a.verdict.Rule, RefusalReason: found.refusal})
	}
	l, err := p.draft(a, found)
	if err != nil {
		return Failed, err
	}
	if joins(a.verdict.Grant, l.Part) {
		return p.joinLease(ctx, a, l, found.devices)
	}
	l.Daemons, l.GuardGroup = p.daemons(l.Job.ID, l.Settings), p.Groups.OfGuard(l.Job.ID)
	refusal, err := p.serve(ctx, a, l, found.devices)
	switch {
	case err != nil:
		return Failed, err
	case refusal != "":
		return p.refuseUser(a, refusal)
	}
	return opened, nil
}
