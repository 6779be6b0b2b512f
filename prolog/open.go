// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// undoTime bounds the undo of a prolog that failed. The undo may go on when the prolog's own time is over.
const undoTime = 30 * time.Second

// openLease makes the lease. A failure of a process that runs as the user does not prove that the node is faulty:
// other processes of the user can stop and kill the control program, quit the daemon, and answer in its place. So the
// daemons are then tried as the account nobody, which no user can disturb. If they work, the user gets a second try,
// if there is time. If that fails too, the job is refused, and the node is not drained.
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
		o.Log.Error().Err(trial).Msg("the control daemon also fails as user nobody: the node is at fault")
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

// failedAsUser reports whether an attempt failed in a process of the job's user, and left the node clean.
func failedAsUser(err error) bool {
	var user *site.AsUserError
	return errors.As(err, &user) && !isDirty(err)
}

// attempt makes a lease. It stops at the first error, and then undoes what the lease lists.
func (o Prolog) attempt(ctx context.Context, l lease.Lease, v opening, devices []site.Device) error {
	l.Held, l.Daemons = slices.Clone(l.Held), slices.Clone(l.Daemons)
	if err := o.step("lease", func() error { return o.Store.Create(ctx, l) }); err != nil {
		return err
	}
	err := o.apply(ctx, &l, v, devices)
	if err == nil {
		return nil
	}
	o.Log.Error().Err(err).Msg("cannot open lease: undoing")
	l.DrainGrace = 0 // without a ticket there are no clients
	if undone := o.undo(l); undone != nil {
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
func (o Prolog) trial(l lease.Lease, grant policy.Grant) error {
	ctx, cancel := context.WithTimeout(context.Background(), trialTime)
	defer cancel()
	l.Job.User, l.Job.UID, l.KeepLogs, l.DrainGrace, l.Hold = "nobody", nobody, "", 0, 0
	l.Held, l.Daemons = slices.Clone(l.Held), slices.Clone(l.Daemons)
	for i := range l.Held {
		l.Held[i].OriginalMode, l.Held[i].NewMode, l.Held[i].JobFile = "", "", ""
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

// draft returns the lease as it will be. It has the modes that the GPUs have now, because the undo restores those.
func (o Prolog) draft(v opening, devices []site.Device) (lease.Lease, error) {
	grant := v.verdict.Grant
	asked, err := json.Marshal(v.request.Truncated())
	if err != nil {
		return lease.Lease{}, fmt.Errorf("cannot record request of job %d: %w", v.job.ID, err)
	}
	l := lease.Lease{
		SLUID: v.job.SLUID,
		Job:   leaseJob(v.job), Phase: lease.Opening, Rule: v.verdict.Rule, Request: asked,
		DrainGrace: lease.Duration(grant.DrainGrace), KeepLogs: string(grant.KeepLogs), Hold: lease.Duration(grant.Hold), Pause: lease.Duration(grant.Pause),
		Clients:   o.served(),
		CreatedAt: o.Clock(),
	}
	for _, device := range devices {
		held, err := o.modeChange(device, grant)
		if err != nil {
			return l, err
		}
		held.JobFile = o.jobFile(device.UUID)
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

// served returns the number of clients that MPS serves on a GPU of this node. If the driver's version cannot be read,
// it is the number that every driver serves.
func (o Prolog) served() int {
	driver, err := o.GPUs.Driver()
	if err != nil {
		o.Log.Warn().Err(err).Int("max_clients", policy.Clients).Msg("cannot find out how many clients MPS serves on a GPU")
	}
	return policy.ClientsOf(driver)
}

// modeChange returns the new mode of a device. EXCLUSIVE_PROCESS does not exist for MIG instances. PROHIBITED stays,
// because an admin took that GPU out of service.
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

// groups returns which devices share a daemon. A daemon serves only one MIG instance.
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

// apply carries out the lease, in the order of docs/contract.md.
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
	o.writeJobFiles(*l)
	return o.step("ticket", func() error { return o.publish(*l, o.ticket(*l, v, devices)) })
}

// modesAsClaimed reads the modes again, because the devices belong to this job only now. Until then another job's
// epilog may have restored them, and this job must restore the later modes.
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

// modeOf returns the mode of a device that is in service.
func (o Prolog) modeOf(uuid site.UUID) (site.Mode, error) {
	mode, err := o.GPUs.Mode(uuid)
	if err == nil && mode == site.ModeProhibited {
		err = fmt.Errorf("cannot use %s: its compute mode is %s: an admin took it out of service", uuid, mode)
	}
	return mode, err
}

// setModes sets the modes and reads them back, because only the driver knows whether a GPU is exclusive.
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

// jobFile is the file that names the job of a GPU, "" if there is none to write. A MIG instance has none, because
// dcgm-exporter knows only whole GPUs.
func (o Prolog) jobFile(uuid site.UUID) string {
	if o.JobFiles == "" || uuid.MIG() {
		return ""
	}
	index, err := o.GPUs.Index(uuid)
	if err != nil {
		o.noJobFile(err)
		return ""
	}
	return filepath.Join(o.JobFiles, strconv.Itoa(index))
}

// writeJobFiles writes the job files. A failure costs the site a label in its charts, so it fails no job.
func (o Prolog) writeJobFiles(l lease.Lease) {
	for _, held := range l.Held {
		if held.JobFile == "" {
			continue
		}
		if err := lease.WriteJobFile(held.JobFile, l.Job.ID); err != nil {
			o.noJobFile(err)
		}
	}
}

func (o Prolog) noJobFile(err error) {
	o.Log.Warn().Err(err).Msg("dcgm-exporter does not know which job has a GPU")
}

// groupOf returns the control group for a job's n-th daemon.
func (o Prolog) groupOf(job uint32, n int) string {
	group, err := o.Groups.Of(job, n)
	if err != nil {
		o.noGroup(err)
	}
	return group
}

// noGroup logs that a daemon has no control group.
func (o Prolog) noGroup(err error) {
	o.Log.Warn().Err(err).Msg("a daemon has no control group: processes that its user starts through it may outlive the job")
}

// makeDirs makes the job's folders, and the daemons' control groups if the node can have them.
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

// startAll starts the daemons and the guard side by side, and records their processes.
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

// step runs one step and logs its time.
func (o Prolog) step(name string, act func() error) error {
	began := o.Clock()
	err := act()
	o.Log.Info().Str("step", name).Dur("ms", o.Clock().Sub(began)).Bool("ok", err == nil).Send()
	return err
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
