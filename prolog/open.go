// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// undoTime bounds the undo of a prolog that failed. The undo may go on when the prolog's own time is over.
const undoTime = 30 * time.Second

// refuseUser writes the ticket of a job whose user's processes fail.
func (p Prolog) refuseUser(a admission, refusal string) (Outcome, error) {
	p.Log.Warn().Uint32("uid", a.job.UID).Str("reason", refusal).Msg("refused: the control daemon fails only as this user")
	return refused, p.Store.WriteTicket(lease.Ticket{
		Job: leaseJob(a.job), Rule: a.verdict.Rule, RefusalReason: refusal, RunWithoutMPS: a.verdict.Grant.OnFailure == policy.FailRunWithout,
	})
}

// serve carries out a lease. A failure of a process that runs as the user does not prove that the node is faulty:
// other processes of the user can stop and kill the control program, quit the daemon, and answer in its place. So the
// daemons are then tried as the account nobody, which no user can disturb. If they work, the user gets a second try,
// if there is time. If that fails too, serve returns the reason to refuse the job, and the node is not drained.
func (p Prolog) serve(ctx context.Context, a admission, l lease.Lease, devices []site.Device) (refusal string, err error) {
	if l.Job.Groups, err = a.groups(); err != nil {
		return "", err
	}
	err = p.attempt(ctx, l, a, devices)
	if !failedAsUser(err) {
		return "", err
	}
	if trial := p.step("trial as nobody", func() error { return p.trial(l) }); trial != nil {
		p.Log.Error().Err(trial).Msg("the control daemon also fails as user nobody: the node is at fault")
		if isDirty(trial) {
			err = errors.Join(err, trial)
		}
		return "", err
	}
	if ctx.Err() == nil {
		err = p.attempt(ctx, l, a, devices)
	}
	if !failedAsUser(err) {
		return "", err
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ") + ": it works for others, so what else you run on the node may be the cause: submit the job again", nil
}

// failedAsUser reports whether an attempt failed in a process of the job's user, and left the node clean.
func failedAsUser(err error) bool {
	var user *site.AsUserError
	return errors.As(err, &user) && !isDirty(err)
}

// attempt makes a lease. It stops at the first error, and then undoes what the lease lists.
func (p Prolog) attempt(ctx context.Context, l lease.Lease, a admission, devices []site.Device) error {
	l.GPUs, l.Daemons = slices.Clone(l.GPUs), slices.Clone(l.Daemons)
	if err := p.step("lease", func() error { return p.Store.Create(ctx, l) }); err != nil {
		return err
	}
	err := p.apply(ctx, &l, a, devices)
	if err == nil {
		return nil
	}
	p.Log.Error().Err(err).Msg("cannot open lease: undoing")
	l.DrainGrace = 0 // without a ticket there are no clients
	if undone := p.undo(l); undone != nil {
		return dirtyError{errors.Join(err, undone)}
	}
	return err
}

// trialTime bounds the trial of the daemons as nobody, which takes 30 ms on a healthy node. The trial has its own
// time. If a user has used up the prolog's time, a trial without time would blame the node.
const trialTime = 10 * time.Second

// nobody has no rights that a user lacks, except the groups of the job's user, and no user can signal its processes.
// A trial as root would prove less: daemons can work as root and fail as every user, and the node would refuse job
// after job.
const nobody = 65534

// trial starts the lease's daemons as nobody, asks them and undoes everything. It has its own lease, so a prolog that
// is killed here leaves a record. The compute modes stay as they are.
func (p Prolog) trial(l lease.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), trialTime)
	defer cancel()
	l.Job.User, l.Job.UID, l.KeepLogs, l.DrainGrace, l.Hold = "nobody", nobody, "", 0, 0
	l.GPUs, l.Daemons = slices.Clone(l.GPUs), slices.Clone(l.Daemons)
	for i := range l.GPUs {
		l.GPUs[i].OriginalMode, l.GPUs[i].NewMode = "", ""
	}
	if err := p.Store.Create(ctx, l); err != nil {
		return err
	}
	err := p.makeDirs(&l)
	if err == nil {
		err = p.startAll(ctx, &l)
	}
	if err == nil {
		err = p.prepareDaemons(ctx, l)
	}
	if undone := p.undo(l); undone != nil {
		return dirtyError{errors.Join(err, undone)}
	}
	return err
}

func (p Prolog) undo(l lease.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	return p.step("undo", func() error { return p.Undo(ctx, l) })
}

// draft returns the lease as it will be. It has the modes that the GPUs have now, because the undo restores those.
func (p Prolog) draft(a admission, found resolution) (lease.Lease, error) {
	grant := a.verdict.Grant
	l, err := p.newLease(a.job, a.request, found)
	if err != nil {
		return l, err
	}
	l.Rule = a.verdict.Rule
	if l.Settings, err = p.settings(grant, found); err != nil {
		return l, err
	}
	if found.part.Shared() {
		grant.Compute = policy.ComputeUnchanged // in EXCLUSIVE_PROCESS, one job's server alone could use the GPU
	}
	for _, device := range found.devices {
		gpu, err := p.modeChange(device, grant)
		if err != nil {
			return l, err
		}
		l.GPUs = append(l.GPUs, gpu)
	}
	return l, nil
}

// newLease returns what the leases of jobs with and without MPS have.
func (p Prolog) newLease(job slurm.Job, request policy.Request, found resolution) (l lease.Lease, err error) {
	l = lease.Lease{
		SLUID: job.SLUID, Job: leaseJob(job), Phase: lease.Opening, CreatedAt: p.Clock(), Part: found.part,
	}
	if l.Request, err = json.Marshal(request.Truncated()); err != nil {
		err = fmt.Errorf("cannot record request of job %d: %w", job.ID, err)
	}
	return l, err
}

// settings returns the settings of a job's daemons and guard. No other function gives them anything of the grant.
func (p Prolog) settings(grant policy.Grant, found resolution) (lease.Settings, error) {
	s := p.Site
	s.DrainGrace, s.KeepLogs = lease.Duration(grant.DrainGrace), string(grant.KeepLogs)
	s.GuardSettings = lease.GuardOf(grant, p.served())
	part := found.part.Percent()
	if joins(grant, found.part) { // the jobs that share a daemon may have different parts
		part = 0
	}
	for _, group := range groups(found.devices, grant) {
		if _, err := p.Daemons.Fit(len(group)); err != nil {
			return s, err
		}
		s.Limits = append(s.Limits, limits(group, policy.PercentFrom(grant.Ceiling), part))
	}
	return s, nil
}

func (p Prolog) daemons(id uint32, s lease.Settings) (all []lease.Daemon) {
	for n, limits := range s.Limits {
		dir := p.Store.DaemonDir(id, n)
		all = append(all, lease.Daemon{
			Devices: limits.Devices, PipeDir: filepath.Join(dir, "pipe"), LogDir: filepath.Join(dir, "log"), Group: p.groupOf(id, n),
		})
	}
	return all
}

// served returns the number of clients that MPS serves on a GPU of this node. If the driver's version cannot be read,
// it is the number that every driver serves.
func (p Prolog) served() int {
	driver, err := p.GPUs.Driver()
	if err != nil {
		p.Log.Warn().Err(err).Int("max_clients", policy.Clients).Msg("cannot find out how many clients MPS serves on a GPU")
	}
	return policy.ClientsOf(driver)
}

// modeChange returns the new mode of a device. EXCLUSIVE_PROCESS does not exist for MIG instances. PROHIBITED stays,
// because an admin took that GPU out of service.
func (p Prolog) modeChange(device site.Device, grant policy.Grant) (lease.LeasedGPU, error) {
	gpu := lease.LeasedGPU{UUID: device.UUID, Minor: device.Minor}
	if device.UUID.MIG() || grant.Compute == policy.ComputeUnchanged {
		return gpu, nil
	}
	mode, err := p.modeOf(device.UUID)
	if err != nil {
		return gpu, err
	}
	gpu.OriginalMode, gpu.NewMode = mode, site.ModeExclusiveProcess
	return gpu, nil
}

// groups returns which devices share a daemon. A daemon serves only one MIG instance.
func groups(devices []site.Device, grant policy.Grant) [][]site.Device {
	size := 1
	if grant.Scope == policy.ScopeJob && !devices[0].UUID.MIG() {
		size = len(devices)
	}
	return slices.Collect(slices.Chunk(devices, size))
}

// apply carries out the lease, in the order of docs/contract.md. The modes are set while the daemon starts: only the
// daemon's server opens the GPUs, and Configure starts it.
func (p Prolog) apply(ctx context.Context, l *lease.Lease, a admission, devices []site.Device) error {
	if err := p.modesAsClaimed(l); err != nil {
		return err
	}
	modes, gpus := make(chan error, 1), l.GPUs
	go func() { modes <- p.step("modes", func() error { return p.setModes(gpus) }) }()
	err := p.step("folders", func() error { return p.makeDirs(l) })
	if err == nil {
		err = p.step("daemon and guard", func() error { return p.startAll(ctx, l) })
	}
	if failed := <-modes; failed != nil {
		return failed // and not err, which the user may have caused
	}
	if err != nil {
		return err
	}
	if err := p.step("answer", func() error { return p.prepareDaemons(ctx, *l) }); err != nil {
		return err
	}
	return p.step("ticket", func() error { return p.publish(*l, p.ticket(*l, *l, a, devices)) })
}

// modesAsClaimed reads the modes again, because the devices belong to this job only now. Until then another job's
// epilog may have restored them, and this job must restore the later modes.
func (p Prolog) modesAsClaimed(l *lease.Lease) error {
	changed := false
	for i, gpu := range l.GPUs {
		if gpu.NewMode == "" {
			continue
		}
		mode, err := p.modeOf(gpu.UUID)
		if err != nil {
			return err
		}
		changed = changed || mode != gpu.OriginalMode
		l.GPUs[i].OriginalMode = mode
	}
	if !changed {
		return nil
	}
	return p.Store.Save(*l)
}

// modeOf returns the mode of a device that is in service.
func (p Prolog) modeOf(uuid site.UUID) (site.Mode, error) {
	mode, err := p.GPUs.Mode(uuid)
	if err == nil && mode == site.ModeProhibited {
		err = fmt.Errorf("cannot use %s: its compute mode is %s: an admin took it out of service", uuid, mode)
	}
	return mode, err
}

// setModes sets the modes and reads them back, because only the driver knows whether a GPU is exclusive.
func (p Prolog) setModes(gpus []lease.LeasedGPU) error {
	for _, gpu := range gpus {
		if gpu.NewMode == "" || gpu.NewMode == gpu.OriginalMode {
			continue
		}
		if err := p.GPUs.SetMode(gpu.UUID, gpu.NewMode); err != nil {
			return err
		}
		mode, err := p.GPUs.Mode(gpu.UUID)
		if err != nil {
			return err
		}
		if mode != gpu.NewMode {
			return fmt.Errorf("cannot set compute mode of %s: set to %s, and it reads %s", gpu.UUID, gpu.NewMode, mode)
		}
	}
	return nil
}

func (p Prolog) groupOf(job uint32, n int) string {
	group, err := p.Groups.Of(job, n)
	if err != nil {
		p.noGroup(err)
	}
	return group
}

func (p Prolog) noGroup(err error) {
	p.Log.Warn().Err(err).Msg("a daemon has no control group: processes that its user starts through it may outlive the job")
}

// makeDirs makes the job's folders, and the control groups if the node can have them.
func (p Prolog) makeDirs(l *lease.Lease) error {
	for n := range l.Daemons {
		l.Daemons[n].Group = p.makeGroup(l.Daemons[n].Group)
	}
	l.GuardGroup = p.makeGroup(l.GuardGroup)
	return p.Store.MakeDirs(*l)
}

// makeGroup makes a control group, and returns "" if the node cannot have it.
func (p Prolog) makeGroup(dir string) string {
	if dir == "" {
		return ""
	}
	if err := p.Groups.Make(dir); err != nil {
		p.noGroup(err)
		return ""
	}
	return dir
}

// startAll starts the daemons and the guard side by side, and records their processes.
func (p Prolog) startAll(ctx context.Context, l *lease.Lease) error {
	daemons, job := len(l.Daemons), l.Job.ID
	all := daemons
	if l.Hold > 0 {
		all++
	}
	err := wait.Each(all, func(n int) (err error) {
		if n == daemons {
			l.Guard, err = p.Guards.Start(ctx, job)
			return err
		}
		l.Daemons[n].Proc, err = p.Daemons.Start(ctx, l.Job, l.Daemons[n])
		return err
	})
	return errors.Join(err, p.Store.Save(*l))
}

func (p Prolog) prepareDaemons(ctx context.Context, l lease.Lease) error {
	return wait.Each(len(l.Daemons), func(n int) error {
		return p.Daemons.Configure(ctx, l.Job, l.Daemons[n], l.Limits[n])
	})
}

// limits returns what a daemon limits each of its clients to: the policy's ceiling, and the job's part of each GPU. The
// ranks have these limits, too. A part of 0 is none.
func limits(devices []site.Device, ceiling, part policy.Percent) lease.Limits {
	limits := lease.Limits{Devices: site.UUIDs(devices), Ceiling: ceiling}
	if part == 0 {
		return limits
	}
	limits.Ceiling = min(ceiling, part)
	for _, device := range devices {
		limits.MemoryMiB = append(limits.MemoryMiB, policy.PartMiB(device.MemoryMiB, part)-policy.ReserveMiB)
	}
	return limits
}

func (p Prolog) step(name string, act func() error) error {
	began := p.Clock()
	err := act()
	p.Log.Info().Str("step", name).Dur("ms", p.Clock().Sub(began)).Bool("ok", err == nil).Send()
	return err
}

func leaseJob(job slurm.Job) lease.Job {
	return lease.Job{ID: job.ID, UID: job.UID, GID: job.GID, User: job.User}
}
