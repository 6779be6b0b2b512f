// SPDX-License-Identifier: Apache-2.0

// Package prolog opens a lease: it makes a node ready for a job that its policy gives MPS to.
//
// The promise: the intent is written before the first effect; whatever fails is undone by that record; and an exit code
// is a scheduling act, so what a user did wrong never fails a prolog: the job's ticket says it.
package prolog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Daemons is what the prolog asks of control daemons. Every call ends by ctx's deadline.
type Daemons interface {
	UserGroups(context.Context, lease.Job) ([]uint32, error)
	Start(context.Context, lease.Job, lease.Daemon) (site.Process, error)
	Configure(context.Context, lease.Job, lease.Daemon, policy.Percent) error
	Ping(context.Context, lease.Job, lease.Daemon) error
	// Fit is how many clients fit on each GPU of a daemon of so many; not one is an error.
	Fit(gpus int) (clients int, err error)
}

// Guards is what the prolog asks of guards. Every call ends by ctx's deadline.
type Guards interface {
	Start(ctx context.Context, job uint32) (site.Process, error)
	Running(job uint32) (site.Process, error)
}

// ControlGroups is what the prolog asks of the node's control groups.
type ControlGroups interface {
	Of(job uint32, n int) (dir string, err error)
	Make(dir string) error
}

// GPUs is what the prolog asks of the driver.
type GPUs interface {
	Devices() ([]site.Device, error)
	ByMinor(int) (site.Device, error)
	Find(site.UUID) (site.Device, error)
	Capability(site.UUID) (major, minor int, err error)
	Mode(site.UUID) (site.Mode, error)
	SetMode(site.UUID, site.Mode) error
	Driver() (string, error)
}

// Slurm is what the prolog asks of Slurm's files.
type Slurm interface {
	Gres(slurm.Job) (slurm.Gres, error)
	Features(slurm.Job) ([]string, error)
}

// Prolog opens leases.
type Prolog struct {
	Store      *lease.Store
	Daemons    Daemons
	Guards     Guards
	Groups     ControlGroups
	GPUs       GPUs
	Slurm      Slurm
	GroupNames func(context.Context, []uint32) ([]string, error) // of groups
	Undo       func(context.Context, lease.Lease) error          // the epilog's
	Control    lease.Program                                     // for the ticket
	Log        zerolog.Logger
	Clock      func() time.Time
}

// Outcome is how an Open ended. All but Failed let the job start.
type Outcome string

// The ways of an Open to end.
const (
	NotRequested  Outcome = "not asked" // the job does not ask for MPS
	Opened        Outcome = "opened"
	Adopted       Outcome = "adopted" // the job's lease is open and its daemons serve: nothing was changed
	Refused       Outcome = "refused" // the job cannot have MPS, and its ticket says why
	RanWithoutMPS Outcome = "without" // the node failed, and the policy lets the job run without MPS
	Failed        Outcome = "failed"  // the node failed: drain it
)

// undoTime bounds the undo of a prolog that failed, which goes on when the prolog's own time is over.
const undoTime = 30 * time.Second

// Open decides on a job and makes its lease. The error is nil for all outcomes but Without and Failed.
func (o Prolog) Open(ctx context.Context, job slurm.Job, law policy.Policy) (Outcome, error) {
	if !Requested(job, law) {
		return NotRequested, nil
	}
	v := opening{
		job:     job,
		groups:  sync.OnceValues(func() ([]uint32, error) { return o.Daemons.UserGroups(ctx, leaseJob(job)) }),
		resolve: sync.OnceValues(func() (resolution, error) { return o.resolve(job) }),
	}
	if err := o.decide(ctx, &v, law); err != nil {
		return Failed, err
	}
	o.Log = o.Log.With().Str("rule", v.verdict.Rule).Logger()
	turn, err := o.Store.Lock(ctx, job.ID)
	if err != nil {
		return Failed, err
	}
	defer turn.Release()
	outcome, err := o.open(ctx, v)
	if err == nil {
		return outcome, nil
	}
	return o.onFailure(v, err)
}

// Requested reports whether a job asks for MPS. Without a trigger the rules alone know, and they need no look-up then.
func Requested(job slurm.Job, law policy.Policy) bool {
	_, asks := law.Requested(request(job))
	if asks && law.Trigger == nil {
		return law.Decide(request(job)).Requested
	}
	return asks
}

// opening is one job at the prolog: what was decided, and what is looked up once whoever asks first.
type opening struct {
	job     slurm.Job
	request policy.Request
	verdict policy.Decision
	groups  func() ([]uint32, error)
	resolve func() (resolution, error)
}

// resolution are the devices of a job, or why it is not certain which they are.
type resolution struct {
	devices []site.Device
	refusal string
}

// decide asks the law, after looking up what its rules mention. A look-up that fails is the node's failure, and no rule
// has said by then that the job may run without MPS.
func (o Prolog) decide(ctx context.Context, v *opening, law policy.Policy) error {
	v.request = request(v.job)
	refusal, err := o.lookUp(ctx, v, law.Lookups, &v.request)
	if err != nil {
		return err
	}
	if refusal != "" {
		v.verdict = policy.Decision{Requested: true, Denied: refusal}
		return nil
	}
	v.verdict = law.Decide(v.request)
	return nil
}

// lookUp adds to a request what the rules mention and Slurm did not say. A doubt about the GPUs is a refusal: a rule that
// asks about them could only guess.
func (o Prolog) lookUp(ctx context.Context, v *opening, needs policy.Lookups, r *policy.Request) (refusal string, err error) {
	for _, look := range []struct {
		needed bool
		up     func() error
	}{
		{needs.Features, func() (err error) { r.Features, err = o.Slurm.Features(v.job); return err }},
		{needs.Groups, func() (err error) { r.Groups, err = o.groupNames(ctx, v); return err }},
		{needs.Driver, func() (err error) { r.Driver, err = o.GPUs.Driver(); return err }},
		{needs.Devices, func() (err error) { r.NodeGPUs, err = o.countGPUs(); return err }},
		{needs.GPU, func() (err error) { r.GPU, refusal, err = firstGPU(v); return err }},
	} {
		if !look.needed {
			continue
		}
		if err := look.up(); err != nil || refusal != "" {
			return refusal, err
		}
	}
	return "", nil
}

func (o Prolog) countGPUs() (int, error) {
	all, err := o.GPUs.Devices()
	return len(all), err
}

func firstGPU(v *opening) (facts policy.GPUFacts, refusal string, err error) {
	of, err := v.resolve()
	if err != nil || of.refusal != "" {
		return facts, of.refusal, err
	}
	first := of.devices[0]
	return policy.GPUFacts{Model: first.Name, SMs: first.SMs, MemoryMiB: first.MemoryMiB, MIG: first.UUID.MIG()}, "", nil
}

func (o Prolog) groupNames(ctx context.Context, v *opening) ([]string, error) {
	groups, err := v.groups()
	if err != nil {
		return nil, err
	}
	return o.GroupNames(ctx, groups)
}

// dirtyError is a failure that no policy lets a job run after: the node is not as it was.
type dirtyError struct{ error }

func (e dirtyError) Unwrap() error { return e.error }

func isDirty(err error) bool {
	var dirty dirtyError
	return errors.As(err, &dirty)
}

// onFailure decides what a failure means.
func (o Prolog) onFailure(v opening, failure error) (Outcome, error) {
	if v.verdict.Grant.OnFailure != policy.FailRunWithout || isDirty(failure) {
		return Failed, failure
	}
	ticket := lease.Ticket{Job: leaseJob(v.job), Rule: v.verdict.Rule, RefusalReason: failure.Error(), RunWithoutMPS: true}
	if err := o.Store.WriteTicket(ticket); err != nil {
		return Failed, errors.Join(failure, err)
	}
	return RanWithoutMPS, failure
}

func (o Prolog) open(ctx context.Context, v opening) (Outcome, error) {
	before, err := o.earlierLease(ctx, v.job)
	if err != nil {
		return Failed, err
	}
	of := resolution{refusal: v.verdict.Denied}
	if of.refusal == "" {
		go v.groups() // while the driver is asked for the GPUs: both take their time
		err = o.step("gpus", func() (err error) { of, err = v.resolve(); return err })
	}
	if err != nil {
		return Failed, err
	}
	if before != nil {
		if o.adoptable(ctx, *before, of) {
			o.guardAgain(ctx, *before)
			return Adopted, o.republish(*before, v, of.devices)
		}
		if err := o.undo(*before); err != nil {
			return Failed, dirtyError{err}
		}
	}
	if of.refusal != "" {
		o.Log.Warn().Str("reason", of.refusal).Msg("refused: the ticket says so")
		return Refused, o.Store.WriteTicket(lease.Ticket{Job: leaseJob(v.job), Rule: v.verdict.Rule, RefusalReason: of.refusal})
	}
	return o.openLease(ctx, v, of.devices)
}

// earlierLease is the lease that an earlier prolog of the same job left, nil where there is none that means anything.
func (o Prolog) earlierLease(ctx context.Context, job slurm.Job) (*lease.Lease, error) {
	l, err := o.Store.Read(job.ID)
	switch {
	case errors.Is(err, lease.ErrNotFound):
		return nil, nil
	case errors.Is(err, lease.ErrStaleBoot):
		return nil, o.Store.PurgeStale(ctx, job.ID)
	case err != nil:
		return nil, dirtyError{err}
	}
	return &l, nil
}

// resolve finds the devices of the job. What leaves a doubt is a refusal: a sentence for the ticket.
func (o Prolog) resolve(job slurm.Job) (resolution, error) {
	gres, err := o.Slurm.Gres(job)
	if err != nil {
		return resolution{}, err
	}
	if refusal := shares(gres, job); refusal != "" {
		return resolution{refusal: refusal}, nil
	}
	refs, err := slurm.ResolvePositions(gres, job)
	if err != nil {
		return resolution{refusal: err.Error()}, nil
	}
	if len(refs) == 0 {
		return resolution{refusal: fmt.Sprintf("job %d asks for MPS and has no GPU on node %s: submit it with --gres=gpu:N", job.ID, job.Node)}, nil
	}
	var of resolution
	switch refs[0].By {
	case slurm.ByUUID:
		of.devices, err = findEach(refs, func(r slurm.DeviceRef) (site.Device, error) { return o.GPUs.Find(r.UUID) })
	case slurm.ByMinor:
		of.devices, err = findEach(refs, func(r slurm.DeviceRef) (site.Device, error) { return o.GPUs.ByMinor(r.N) })
	default:
		of.devices, of.refusal, err = o.picked(gres, refs)
	}
	if err != nil || of.refusal != "" {
		return resolution{refusal: of.refusal}, err
	}
	of.refusal, err = o.unsuitable(of.devices)
	return of, err
}

// shares is why a job may not have its GPUs whole: Slurm itself shares the node's GPUs among jobs.
func shares(gres slurm.Gres, job slurm.Job) string {
	switch {
	case job.GresMPS:
		return fmt.Sprintf("job %d has a part of a GPU by gres/mps, and MPS here takes whole GPUs: submit it with --gres=gpu:N", job.ID)
	case slices.Contains(gres.Shared, "shard"):
		return fmt.Sprintf("node %s shares its GPUs by gres/shard, and Slurm does not tell whether job %d has a whole one: submit it to a node without shards", job.Node, job.ID)
	}
	return ""
}

// findEach finds each device by itself: a GPU that has failed fails no job but those that have it.
func findEach(refs []slurm.DeviceRef, one func(slurm.DeviceRef) (site.Device, error)) ([]site.Device, error) {
	devices := make([]site.Device, len(refs))
	for i, ref := range refs {
		device, err := one(ref)
		if err != nil {
			return nil, err
		}
		devices[i] = device
	}
	return devices, nil
}

// picked finds devices by their place in a list that Slurm sorted, which takes all of the node's devices to know.
func (o Prolog) picked(gres slurm.Gres, refs []slurm.DeviceRef) (devices []site.Device, refusal string, err error) {
	all, err := o.GPUs.Devices()
	if err != nil {
		return nil, "", err
	}
	devices, err = slurm.MatchDevices(gres, refs, all)
	if err != nil {
		return nil, err.Error(), nil
	}
	return devices, "", nil
}

// volta is the first compute capability whose MPS isolates clients and knows shares.
const volta = 7

// unsuitable is why MPS cannot share one of the devices, "" where it can share all.
func (o Prolog) unsuitable(devices []site.Device) (string, error) {
	for _, d := range devices {
		if d.MIGMode {
			return fmt.Sprintf("%s is in MIG mode, and the job has it whole: ask for an instance of it", d.UUID), nil
		}
		major, minor, err := o.GPUs.Capability(d.UUID)
		if err != nil {
			return "", err
		}
		if major < volta {
			return fmt.Sprintf("%s (%s) has compute capability %d.%d: MPS shares a GPU safely from %d.0 (Volta) on", d.UUID, d.Name, major, minor, volta), nil
		}
	}
	return "", nil
}

// adoptable reports whether a lease is this job's as it stands: open, of the same devices, and its daemons serve. A refusal
// says nothing of devices: what a job has that runs, it keeps, though by now the policy would deny it.
func (o Prolog) adoptable(ctx context.Context, l lease.Lease, of resolution) bool {
	held := make([]site.UUID, len(l.Held))
	for i, h := range l.Held {
		held[i] = h.UUID
	}
	if l.Phase != lease.Opened || of.refusal == "" && !slices.Equal(held, uuids(of.devices)) {
		return false
	}
	if _, err := o.Store.ReadTicket(l.Job.ID); err != nil && of.refusal != "" {
		return false // nobody has run with it yet
	}
	for _, d := range l.Daemons {
		if !d.Proc.Running() {
			return false
		}
		if err := o.Daemons.Ping(ctx, l.Job, d); err != nil {
			o.Log.Warn().Err(err).Msg("an earlier daemon of this job is not adopted")
			return false
		}
	}
	return true
}

// guardAgain starts another guard for an adopted lease whose guard is gone. Without one the job goes on, and status reports it.
func (o Prolog) guardAgain(ctx context.Context, l lease.Lease) {
	if running, err := o.Guards.Running(l.Job.ID); err != nil || running.PID > 0 || l.Hold == 0 {
		return
	}
	guard, err := o.Guards.Start(ctx, l.Job.ID)
	if err == nil {
		l.Guard = guard
		err = o.Store.Save(l)
	}
	o.Log.Warn().AnErr("error", err).Int("pid", guard.PID).Msg("the job's guard was gone: another one is started")
}

// republish gives an adopted lease its ticket where a prolog died before that.
func (o Prolog) republish(l lease.Lease, v opening, devices []site.Device) error {
	_, err := o.Store.ReadTicket(l.Job.ID)
	if errors.Is(err, lease.ErrNotFound) {
		return o.Store.WriteTicket(o.ticket(l, v, devices))
	}
	return err
}

// openLease is the way in. What failed as the user is no proof that the node fails: other processes of the user's can stop
// and kill the control program, quit the daemon, and answer in its place. Where it works as nobody, whom no user can
// disturb, the user gets a second try, if there is time; when that fails too, the job is refused and the node is not
// drained.
func (o Prolog) openLease(ctx context.Context, v opening, devices []site.Device) (Outcome, error) {
	l, err := o.draft(v, devices)
	if err != nil {
		return Failed, err
	}
	if l.Job.Groups, err = v.groups(); err != nil {
		return Failed, err
	}
	err = o.attempt(ctx, l, v, devices)
	if !failedAsUser(err) {
		return outcome(err)
	}
	if trial := o.step("trial as nobody", func() error { return o.trial(l, v.verdict.Grant) }); trial != nil {
		o.Log.Error().Err(trial).Msg("the control daemon fails as user nobody too: the node is at fault")
		if isDirty(trial) {
			err = errors.Join(err, trial)
		}
		return Failed, err
	}
	if ctx.Err() == nil {
		err = o.attempt(ctx, l, v, devices)
	}
	if !failedAsUser(err) {
		return outcome(err)
	}
	refusal := strings.ReplaceAll(err.Error(), "\n", "; ") + ": it works for others, so what else you run on the node may be the cause: submit the job again"
	o.Log.Warn().Uint32("uid", l.Job.UID).Str("reason", refusal).Msg("refused: the control daemon fails only as this user")
	return Refused, o.Store.WriteTicket(lease.Ticket{
		Job: leaseJob(v.job), Rule: v.verdict.Rule, RefusalReason: refusal, RunWithoutMPS: v.verdict.Grant.OnFailure == policy.FailRunWithout,
	})
}

func outcome(err error) (Outcome, error) {
	if err != nil {
		return Failed, err
	}
	return Opened, nil
}

// failedAsUser reports whether an attempt failed as the job's user alone, and left the node clean.
func failedAsUser(err error) bool {
	var user *site.AsUserError
	return errors.As(err, &user) && !isDirty(err)
}

// attempt makes a lease: it stops at the first error, and then undoes what the lease says.
func (o Prolog) attempt(ctx context.Context, l lease.Lease, v opening, devices []site.Device) error {
	l.Held, l.Daemons = slices.Clone(l.Held), slices.Clone(l.Daemons)
	if err := o.step("lease", func() error { return o.Store.Create(ctx, l) }); err != nil {
		return err
	}
	err := o.apply(ctx, &l, v, devices)
	if err == nil {
		return nil
	}
	o.Log.Error().Err(err).Msg("failed: undoing")
	l.DrainGrace = 0 // without a ticket there are no clients
	if undone := o.undo(l); undone != nil {
		return dirtyError{errors.Join(err, undone)}
	}
	return err
}

// trialTime bounds the trial of daemons as nobody, which takes 30 ms on a node that is well. It is the trial's own: where a
// user's doing has used up the prolog's, a trial that had none would say that the node fails.
const trialTime = 10 * time.Second

// nobody has no rights that a user lacks, but for the groups of the job's user, and no user can signal what runs as nobody.
// As root daemons would also work where no user's does, and the node would go on to refuse job after job.
const nobody = 65534

// trial starts the lease's daemons as nobody, hears their answers and undoes all of it. It is a lease of its own: whoever
// dies here leaves a record. The modes stay as they are.
func (o Prolog) trial(l lease.Lease, grant policy.Grant) error {
	ctx, cancel := context.WithTimeout(context.Background(), trialTime)
	defer cancel()
	l.Job.User, l.Job.UID, l.KeepLogs, l.DrainGrace, l.Hold = "nobody", nobody, "", 0, 0
	l.Held, l.Daemons = slices.Clone(l.Held), slices.Clone(l.Daemons)
	for i := range l.Held {
		l.Held[i].OriginalMode, l.Held[i].NewMode = "", ""
	}
	if err := o.Store.Create(ctx, l); err != nil {
		return err
	}
	err := o.makeDirs(&l)
	if err == nil {
		err = o.startAll(ctx, &l)
	}
	if err == nil {
		err = o.prepareDaemons(ctx, l, policy.PercentFrom(grant.Ceiling))
	}
	if undone := o.undo(l); undone != nil {
		return dirtyError{errors.Join(err, undone)}
	}
	return err
}

func (o Prolog) undo(l lease.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	return o.step("undo", func() error { return o.Undo(ctx, l) })
}

// draft is the lease as it is meant to become. It holds the modes as they are, since those are what the undo restores.
func (o Prolog) draft(v opening, devices []site.Device) (lease.Lease, error) {
	grant := v.verdict.Grant
	asked, err := json.Marshal(v.request.Truncated())
	if err != nil {
		return lease.Lease{}, fmt.Errorf("cannot record request of job %d: %w", v.job.ID, err)
	}
	l := lease.Lease{
		Job: leaseJob(v.job), Phase: lease.Opening, Rule: v.verdict.Rule, Request: asked,
		DrainGrace: lease.Duration(grant.DrainGrace), KeepLogs: string(grant.KeepLogs), Hold: lease.Duration(grant.Hold),
		CreatedAt: o.Clock(),
	}
	for _, device := range devices {
		held, err := o.modeChange(device, grant)
		if err != nil {
			return l, err
		}
		l.Held = append(l.Held, held)
	}
	for n, group := range groups(devices, grant.Scope) {
		if _, err := o.Daemons.Fit(len(group)); err != nil {
			return l, err
		}
		dir := o.Store.DaemonDir(v.job.ID, n)
		l.Daemons = append(l.Daemons, lease.Daemon{
			Devices: group, PipeDir: filepath.Join(dir, "pipe"), LogDir: filepath.Join(dir, "log"), Group: o.groupOf(v.job.ID, n),
		})
	}
	return l, nil
}

// modeChange says what becomes of a device's mode. EXCLUSIVE_PROCESS is not for MIG instances, and a GPU that an admin took
// out of service by PROHIBITED stays out.
func (o Prolog) modeChange(device site.Device, grant policy.Grant) (lease.ClaimedGPU, error) {
	held := lease.ClaimedGPU{UUID: device.UUID, Minor: device.Minor}
	if device.UUID.MIG() || grant.Compute == policy.ComputeUnchanged {
		return held, nil
	}
	mode, err := o.modeOf(device.UUID)
	if err != nil {
		return held, err
	}
	held.OriginalMode, held.NewMode = mode, site.ModeExclusiveProcess
	return held, nil
}

// groups says which devices share a daemon. A daemon serves one MIG instance only.
func groups(devices []site.Device, scope policy.Scope) [][]site.UUID {
	if scope == policy.ScopeJob && !devices[0].UUID.MIG() {
		return [][]site.UUID{uuids(devices)}
	}
	var each [][]site.UUID
	for _, device := range devices {
		each = append(each, []site.UUID{device.UUID})
	}
	return each
}

// apply does what the lease says, in the order of the design.
func (o Prolog) apply(ctx context.Context, l *lease.Lease, v opening, devices []site.Device) error {
	if err := o.step("modes", func() error { return o.setModes(l) }); err != nil {
		return err
	}
	if err := o.step("folders", func() error { return o.makeDirs(l) }); err != nil {
		return err
	}
	if err := o.step("daemon and guard", func() error { return o.startAll(ctx, l) }); err != nil {
		return err
	}
	ceiling := policy.PercentFrom(v.verdict.Grant.Ceiling)
	if err := o.step("answer", func() error { return o.prepareDaemons(ctx, *l, ceiling) }); err != nil {
		return err
	}
	return o.step("ticket", func() error { return o.publish(*l, o.ticket(*l, v, devices)) })
}

func (o Prolog) publish(l lease.Lease, t lease.Ticket) error {
	l.Phase = lease.Opened
	return errors.Join(o.Store.Save(l), o.Store.WriteTicket(t))
}

// modesAsClaimed reads the modes once more, now that the devices are this job's: until then the epilog of another may
// have been restoring them, and what was found before is not what is to be restored after this job.
func (o Prolog) modesAsClaimed(l *lease.Lease) error {
	changed := false
	for i, held := range l.Held {
		if held.NewMode == "" {
			continue
		}
		mode, err := o.modeOf(held.UUID)
		if err != nil {
			return err
		}
		changed = changed || mode != held.OriginalMode
		l.Held[i].OriginalMode = mode
	}
	if !changed {
		return nil
	}
	return o.Store.Save(*l)
}

// modeOf is the mode of a device that is in service.
func (o Prolog) modeOf(uuid site.UUID) (site.Mode, error) {
	mode, err := o.GPUs.Mode(uuid)
	if err == nil && mode == site.ModeProhibited {
		err = fmt.Errorf("cannot use %s: its compute mode is %s: an admin took it out of service", uuid, mode)
	}
	return mode, err
}

// setModes sets the modes and reads them back: the driver's word, not ours, says that a GPU is exclusive.
func (o Prolog) setModes(l *lease.Lease) error {
	if err := o.modesAsClaimed(l); err != nil {
		return err
	}
	for _, held := range l.Held {
		if held.NewMode == "" || held.NewMode == held.OriginalMode {
			continue
		}
		if err := o.GPUs.SetMode(held.UUID, held.NewMode); err != nil {
			return err
		}
		mode, err := o.GPUs.Mode(held.UUID)
		if err != nil {
			return err
		}
		if mode != held.NewMode {
			return fmt.Errorf("cannot set compute mode of %s: set to %s, and it reads %s", held.UUID, held.NewMode, mode)
		}
	}
	return nil
}

// groupOf is the control group for a job's n-th daemon.
func (o Prolog) groupOf(job uint32, n int) string {
	group, err := o.Groups.Of(job, n)
	if err != nil {
		o.noGroup(err)
	}
	return group
}

// noGroup says what a node does not keep its users from.
func (o Prolog) noGroup(err error) {
	o.Log.Warn().Err(err).Msg("a daemon has no control group of its own: what its user starts through it may outlive the job")
}

// makeDirs makes the job's folders, and the daemons' control groups where there can be any.
func (o Prolog) makeDirs(l *lease.Lease) error {
	for n := range l.Daemons {
		if l.Daemons[n].Group == "" {
			continue
		}
		if err := o.Groups.Make(l.Daemons[n].Group); err != nil {
			o.noGroup(err)
			l.Daemons[n].Group = ""
		}
	}
	return o.Store.MakeDirs(*l)
}

// startAll starts the daemons side by side, and the guard beside them, and records who they are.
func (o Prolog) startAll(ctx context.Context, l *lease.Lease) error {
	daemons, job := len(l.Daemons), l.Job.ID
	all := daemons
	if l.Hold > 0 {
		all++
	}
	err := each(all, func(n int) (err error) {
		if n == daemons {
			l.Guard, err = o.Guards.Start(ctx, job)
			return err
		}
		l.Daemons[n].Proc, err = o.Daemons.Start(ctx, l.Job, l.Daemons[n])
		return err
	})
	return errors.Join(err, o.Store.Save(*l))
}

func (o Prolog) prepareDaemons(ctx context.Context, l lease.Lease, ceiling policy.Percent) error {
	return each(len(l.Daemons), func(n int) error {
		return o.Daemons.Configure(ctx, l.Job, l.Daemons[n], ceiling)
	})
}

// each runs act for 0 to n-1 side by side and joins the errors.
func each(n int, act func(int) error) error {
	results := make(chan error, n)
	for i := range n {
		go func() { results <- act(i) }()
	}
	var failed error
	for range n {
		failed = errors.Join(failed, <-results)
	}
	return failed
}

// step runs one step and logs how long it took.
func (o Prolog) step(name string, act func() error) error {
	began := o.Clock()
	err := act()
	o.Log.Info().Str("step", name).Dur("ms", o.Clock().Sub(began)).Bool("ok", err == nil).Send()
	return err
}

// positions are the places of the job's devices in Slurm's list, nil where Slurm named the devices themselves.
func positions(job slurm.Job) []int {
	if len(job.MIG)+len(job.UUIDs) > 0 {
		return nil
	}
	return job.GPUs
}

func (o Prolog) ticket(l lease.Lease, v opening, devices []site.Device) lease.Ticket {
	l.Job.Groups = nil // nobody's business but the lease's
	g, positions := v.verdict.Grant, positions(v.job)
	t := lease.Ticket{
		Job: l.Job, Rule: v.verdict.Rule, Scope: string(g.Scope), Share: string(g.Share), Overlap: g.Overlap, Ceiling: g.Ceiling,
		Memory: g.Memory.String(), MemoryOverlap: g.MemoryOverlap, LowPriority: g.Low, MaxClients: o.maxClients(l, g),
		RunWithoutMPS: g.OnFailure == policy.FailRunWithout,
		Exclusive:     slices.ContainsFunc(l.Held, func(h lease.ClaimedGPU) bool { return h.NewMode == site.ModeExclusiveProcess }),
		Daemons:       l.Daemons, ControlProgram: o.Control, ExchangeDir: o.Store.ExchangeDir(l.Job.ID),
	}
	for i, device := range devices {
		n := slices.IndexFunc(l.Daemons, func(d lease.Daemon) bool { return slices.Contains(d.Devices, device.UUID) })
		position := -1
		if positions != nil {
			position = positions[i]
		}
		t.Devices = append(t.Devices, lease.TicketDevice{Device: device, Position: position, Daemon: n})
	}
	return t
}

// maxClients is how many ranks may share a GPU: those granted, or fewer when the daemons may not open enough files.
func (o Prolog) maxClients(l lease.Lease, g policy.Grant) int {
	clients := g.MaxClients
	for _, d := range l.Daemons {
		if fit, err := o.Daemons.Fit(len(d.Devices)); err == nil {
			clients = min(clients, fit)
		}
	}
	if clients < g.MaxClients {
		o.Log.Warn().Int("granted", g.MaxClients).Int("max_clients", clients).Msg("fewer ranks fit on a GPU: the daemon's limit of open files is low: mpsctl doctor")
	}
	return clients
}

func request(job slurm.Job) policy.Request {
	return policy.Request{
		JobID: job.ID, User: job.User, UID: job.UID, GID: job.GID, Account: job.Account, Partition: job.Partition,
		QOS: job.QOS, Reservation: job.Reservation, Comment: job.Comment, Extra: job.Extra, Requested: job.Constraints,
		Option: job.Option, HasOption: job.HasOption, GPUs: job.GPUs, NTasks: job.NTasks, Nodes: job.NumNodes,
		Array: job.ArrayJobID, Restart: job.RestartCount, Node: job.Node,
	}
}

func leaseJob(job slurm.Job) lease.Job {
	return lease.Job{ID: job.ID, UID: job.UID, GID: job.GID, User: job.User}
}

func uuids(devices []site.Device) []site.UUID {
	list := make([]site.UUID, len(devices))
	for i, device := range devices {
		list[i] = device.UUID
	}
	return list
}
