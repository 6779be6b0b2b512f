// SPDX-License-Identifier: Apache-2.0

// Package reap closes the leftovers of ended jobs on this node. It decides from leases, tickets, claims, folders,
// Slurm's steps and our daemons whether something is closed, removed, kept or left. An Executor makes the changes.
package reap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm/steps"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// Action is a decision of reap, as a word for programs.
type Action string

// Close undoes a lease, and Remove deletes files without a lease. Keep is for running jobs, and Leave for something
// that an admin must decide.
const (
	Close  Action = "close"
	Remove Action = "remove"
	Keep   Action = "keep"
	Leave  Action = "leave"
)

// Result is one thing that reap has checked.
type Result struct {
	Job    uint32 `json:"job,omitempty"`
	Where  string `json:"where"`
	Action Action `json:"action"`
	Reason string `json:"reason"`
	Fix    string `json:"fix,omitempty"`    // for an admin
	Failed string `json:"failed,omitempty"` // why the action failed
}

// Reaper reaps a node once.
type Reaper struct {
	Executor Executor // New sets that of a dry run

	paths site.Paths
	store *lease.Store
	only  uint32 // the job that the admin calls gone; 0 for none
	self  proc.Process
	gpus  GPUs

	running  steps.Steps                     // at the beginning
	unleased map[uint32][]lease.OrphanDaemon // our daemons without a lease, by the job in their environment
	unseen   error                           // why these are not known
	results  []Result
}

// New returns a Reaper for all jobs, or for one job that the admin calls gone. It changes nothing until it has another
// Executor. It reports a mistake in the site's file as a Result.
func New(paths site.Paths, job uint32, gpus GPUs) (*Reaper, error) {
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	self, err := proc.Current()
	if err != nil {
		return nil, err
	}
	_, status := policyfile.ReadConfig(paths)
	r := &Reaper{
		Executor: dryRun{}, paths: paths, store: lease.OpenReadOnly(paths.Run(), boot), only: job, self: self, gpus: gpus,
	}
	if status.Err != nil {
		reason := fmt.Sprintf("it cannot be used: %v: %s", status.Err, status.Instead("the defaults hold"))
		r.leave("site.hcl", reason, "correct it: mpsctl doctor shows the line")
	}
	return r, nil
}

// Run checks everything, and changes only proved leftovers of an ended job.
func (r *Reaper) Run(ctx context.Context) ([]Result, error) {
	var err error
	if r.running, err = steps.Find(); err != nil {
		return nil, err
	}
	r.takeCensus(ctx)
	jobs, err := r.jobs()
	if err != nil {
		return nil, err
	}
	for _, job := range jobs {
		if ctx.Err() != nil {
			return nil, errors.New("cannot reap all: interrupted: what was begun is finished by the next reap")
		}
		if result := r.job(job); result.Action != "" {
			r.results = append(r.results, result)
		}
	}
	if r.only == 0 {
		r.checkTakers(ctx)
		r.checkHeld()
		r.checkClaims()
		r.checkGPUs()
	}
	return append([]Result{}, r.results...), nil
}

// jobs returns all jobs that have something here, in order.
func (r *Reaper) jobs() ([]uint32, error) {
	if r.only != 0 {
		return []uint32{r.only}, nil
	}
	all := map[uint32]bool{}
	for _, list := range []func() ([]uint32, error){r.store.Jobs, r.store.Tickets, r.store.Dirs, r.store.LockedJobs} {
		jobs, err := list()
		if err != nil {
			return nil, err
		}
		for _, job := range jobs {
			all[job] = true
		}
	}
	claims, err := r.store.Claims()
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if claim.Job != 0 {
			all[claim.Job] = true
		}
	}
	for job := range r.unleased {
		all[job] = true
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// job handles one job. It judges the job again under its lock, because only then no one else can change it.
func (r *Reaper) job(job uint32) Result {
	result, _ := r.judge(job, r.running)
	if result.Action != Close && result.Action != Remove {
		return result
	}
	closed := make(chan Result, 1)
	err := r.Executor.Within(func(ctx context.Context) error {
		closed <- r.close(ctx, job)
		return nil
	})
	select {
	case result = <-closed:
	default:
		result.Failed = words.OneLine(err)
	}
	return result
}

// close judges a job under its lock, and closes it if it still has to be closed.
func (r *Reaper) close(ctx context.Context, job uint32) Result {
	release, err := r.lock(ctx, job)
	var busy *lease.BusyError
	if errors.As(err, &busy) {
		return r.busy(job, busy.Holder)
	}
	if err != nil {
		return resultOf(job).leave(words.OneLine(err), "")
	}
	defer release()
	running, err := steps.Find()
	if err != nil {
		return resultOf(job).leave(words.OneLine(err), "")
	}
	result, left := r.judge(job, running)
	switch result.Action {
	case Close:
		err = r.Executor.Undo(ctx, *left.lease)
	case Remove:
		err = r.Executor.Void(ctx, job, left.daemons)
	}
	if err != nil {
		result.Failed = words.OneLine(err)
	}
	return result
}

// lockTimeout is how long to wait for a prolog or an epilog of the job. reap never ends that process, because only an
// epilog may do so.
const lockTimeout = 2 * time.Second

func (r *Reaper) lock(ctx context.Context, job uint32) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	return r.Executor.Lock(ctx, job)
}

// leftover is the rest of a job: a lease, or files without one.
type leftover struct {
	lease   *lease.Lease
	daemons []lease.OrphanDaemon
}

// judge returns the action for a job. There is none if the job has left nothing.
func (r *Reaper) judge(job uint32, running steps.Steps) (Result, leftover) {
	if holder, acting := r.store.LockHolder(job); acting && holder != r.self {
		return r.busy(job, holder), leftover{}
	}
	l, err := r.store.Read(job)
	result := resultOf(job)
	switch {
	case errors.Is(err, lease.ErrStaleBoot):
		return r.withoutLease(result, "its lease is of another boot: nothing is left of it but files", running)
	case errors.Is(err, lease.ErrNotFound):
		return r.withoutLease(result, "", running)
	case err != nil:
		return result.leave("its lease cannot be read: "+words.OneLine(err), stays), leftover{}
	}
	return r.withLease(result, l, running), leftover{lease: &l}
}

// withLease judges a lease of this boot.
func (r *Reaper) withLease(result Result, l lease.Lease, running steps.Steps) Result {
	if lease.IsShared(l.Job.ID) {
		return r.shared(result, l.Job.ID)
	}
	sign, named := running.Sign(l.Job.ID, l.SLUID), r.only == l.Job.ID
	switch {
	case sign != "" && l.Phase == lease.Opened && !named:
		return result.act(Keep, "it runs: "+sign)
	case sign != "":
		return result.leave("Slurm has a step of it here: "+sign, fmt.Sprintf("end it first: scancel %d", l.Job.ID))
	case l.Phase == lease.Opening:
		return result.act(Close, "its prolog has died before the job was ready")
	case l.Phase == lease.Closing:
		return result.act(Close, "its epilog has begun and did not end well")
	case l.Phase != lease.Opened:
		return result.leave(fmt.Sprintf("its lease is in phase %q, which this program does not know", l.Phase),
			"use the version that wrote it")
	case named:
		return result.act(Close, "you named it as gone")
	}
	reason := "no step of it is here: it may be an allocation without a step"
	if pid := steps.ProcessOf(l.Job.ID, l.Job.UID); pid != 0 {
		reason = fmt.Sprintf("no step of it is here, and pid %d of its user was started in it", pid)
	}
	command := r.paths.ReapCommand(l.Job.ID)
	return result.leave(reason, fmt.Sprintf("if squeue -j %d shows that the job is gone: %s", l.Job.ID, command))
}

// shared judges the lease of a daemon that several jobs share. Slurm knows no job of its number. The prolog of a job writes
// the job's lease first, so a shared lease without members has none on the way.
func (r *Reaper) shared(result Result, id uint32) Result {
	members, err := r.store.Members(id)
	switch users := strings.Trim(fmt.Sprint(members), "[]"); {
	case err != nil:
		return result.leave("the jobs that use it are not known: "+words.OneLine(err), stays)
	case len(members) > 0:
		return result.act(Keep, "jobs use it: "+users)
	}
	return result.act(Close, "no job uses it")
}

// withoutLease judges the files of a job that has no lease of this boot.
func (r *Reaper) withoutLease(result Result, void string, running steps.Steps) (Result, leftover) {
	job := result.Job
	ticket, err := r.store.ReadTicket(job)
	ticketed := err == nil && ticket.RefusalReason == ""
	refused := err == nil && ticket.RefusalReason != ""
	if err != nil && !errors.Is(err, lease.ErrNotFound) && !errors.Is(err, lease.ErrStaleBoot) {
		return result.leave("its ticket cannot be read: "+words.OneLine(err), stays), leftover{}
	}
	daemons := r.living(job)
	found := r.files(job, ticketed || errors.Is(err, lease.ErrStaleBoot))
	for _, d := range daemons {
		found = append(found, fmt.Sprintf("a control daemon or server, pid %d", d.Daemon.Proc.PID))
	}
	if void != "" {
		found = append(found, "a lease of another boot")
	}
	if locked, _ := r.store.LockedJobs(); len(found) == 0 && slices.Contains(locked, job) {
		found = append(found, "the lock of a prolog or an epilog that was killed") // temporary files may be there too
	}
	sign := running.Sign(job, "")
	switch {
	case void != "" && !refused && len(daemons) == 0:
		return result.act(Remove, void), leftover{}
	case refused && len(found) == 0 && r.only != job:
		return Result{}, leftover{} // its user knows that the job has no MPS, and the job may run
	case refused && (sign != "" || r.only != job):
		return result.leave(fmt.Sprintf("it was refused and may run, and there is %s", strings.Join(found, ", ")),
			"when the job is gone: "+r.paths.ReapCommand(job)), leftover{}
	case refused:
		found = append(found, "a refusal")
	case len(found) == 0:
		return Result{}, leftover{}
	case sign != "" && (ticketed || len(daemons) > 0):
		return result.leave("it has no lease, and Slurm has a step of it here: "+sign,
			fmt.Sprintf("requeue it: scontrol requeue %d", job)), leftover{}
	}
	if r.unseen != nil && slices.Contains(found, "a folder") {
		return result.leave("its folder may be in use: "+words.OneLine(r.unseen), "try again"), leftover{}
	}
	return result.act(Remove, "no lease names "+strings.Join(found, ", ")), leftover{daemons: daemons}
}

// files lists a job's files except the lease.
func (r *Reaper) files(job uint32, ticketed bool) []string {
	var found []string
	if ticketed {
		found = append(found, "a ticket")
	}
	if _, err := os.Lstat(r.store.JobDir(job)); err == nil {
		found = append(found, "a folder")
	}
	claims, _ := r.store.Claims()
	for _, claim := range claims {
		if claim.Job == job {
			found = append(found, "the claim on "+string(claim.UUID))
		}
	}
	return found
}

// busy is the result for a job that someone else works on. For a job that the admin has named it is a failure.
func (r *Reaper) busy(job uint32, holder proc.Process) Result {
	result := resultOf(job)
	why := "a prolog or an epilog is at work on it"
	if holder.PID != 0 {
		why += ": " + holder.String()
	}
	if r.only == job {
		return result.leave(why, "wait for it, and try again")
	}
	return result.act(Keep, why)
}

func (r Result) act(action Action, reason string) Result {
	r.Action, r.Reason = action, reason
	return r
}

func (r Result) leave(reason, fix string) Result {
	r.Action, r.Reason, r.Fix = Leave, reason, fix
	return r
}

func resultOf(job uint32) Result { return Result{Job: job, Where: lease.Name(job)} }

// stays is the fix of a record that cannot be read.
const stays = "look at the file: it stays until a person moves it away"

// leave reports something that does not belong to one job.
func (r *Reaper) leave(where, reason, fix string) {
	r.results = append(r.results, Result{Where: where}.leave(reason, fix))
}

// takeCensus finds daemons and servers below our folder that no lease may name. The process shows its job: the pipe
// folder in its environment is in a folder of the job, and its uid is the owner of that folder.
func (r *Reaper) takeCensus(ctx context.Context) {
	r.unleased = map[uint32][]lease.OrphanDaemon{}
	census, err := mps.FindAll(ctx)
	if err != nil {
		r.unseen = err
		r.leave("processes of MPS", "they cannot be seen: "+words.OneLine(err), "look for them: pgrep -a nvidia-cuda-mps")
		return
	}
	if silence := proc.Silence(); silence != "" {
		r.leave("processes", silence, "ask their user: ps waits for them, too")
	}
	for _, p := range census {
		if p.Role == mps.RoleQuery || p.PipeDir != r.paths.Run() && !strings.HasPrefix(p.PipeDir, r.paths.Run()+"/") {
			continue
		}
		job, ok := r.jobOf(p)
		if ok {
			r.unleased[job] = append(r.unleased[job], lease.OrphanDaemon{
				Job: lease.Job{ID: job, UID: p.UID}, Daemon: lease.Daemon{PipeDir: p.PipeDir, Proc: p.Process},
			})
		} else if r.only == 0 {
			const reason = "a process of MPS, of uid %d, with the pipe folder %q below ours, and not proved to be a job's"
			r.leave(p.Process.String(), fmt.Sprintf(reason, p.UID, p.PipeDir), fmt.Sprintf("see whose it is: ps -fp %d", p.PID))
		}
	}
}

// jobOf returns the job of an MPS process by its pipe folder: jobs/ID/N/pipe.
func (r *Reaper) jobOf(p mps.Process) (job uint32, ok bool) {
	name, err := filepath.Rel(filepath.Join(r.paths.Run(), "jobs"), p.PipeDir)
	parts := strings.Split(name, "/")
	if err != nil || len(parts) != 3 || p.UID == 0 {
		return 0, false
	}
	id, err1 := strconv.ParseUint(parts[0], 10, 32)
	n, err2 := strconv.ParseUint(parts[1], 10, 16)
	if errors.Join(err1, err2) != nil || p.PipeDir != filepath.Join(r.store.DaemonDir(uint32(id), int(n)), "pipe") {
		return 0, false
	}
	info, err := os.Lstat(p.PipeDir)
	if errors.Is(err, fs.ErrNotExist) {
		return uint32(id), true
	}
	return uint32(id), err == nil && info.Sys().(*syscall.Stat_t).Uid == p.UID
}

// living returns the daemons of a job without a lease that still run.
func (r *Reaper) living(job uint32) []lease.OrphanDaemon {
	return slices.DeleteFunc(slices.Clone(r.unleased[job]),
		func(d lease.OrphanDaemon) bool { return !d.Daemon.Proc.Running() })
}

// takerEnds is the time in which a process of a guard ends that waits for nothing.
const takerEnds = 100 * time.Millisecond

// checkTakers reports processes of root's that guards have left, because they wait for a user. No signal ends them.
func (r *Reaper) checkTakers(ctx context.Context) {
	left, err := r.store.TakersLeft()
	if len(left) > 0 && wait.Sleep(ctx, takerEnds) { // one whose guard has just ended is about to end
		left, err = r.store.TakersLeft()
	}
	if err != nil {
		r.leave("processes of guards", words.OneLine(err), "look again")
	}
	users := map[uint32]int{}
	for _, t := range left {
		users[t.UID]++
	}
	for _, uid := range slices.Sorted(maps.Keys(users)) {
		const reason = "%s of root's, started by guards, cannot be ended: a file system of the user's does not answer"
		r.leave(fmt.Sprintf("uid %d", uid), fmt.Sprintf(reason, words.Count(users[uid], "process")),
			fmt.Sprintf("end the user's processes: ps -fU %d", uid))
	}
}

// checkHeld frees the file systems of closed jobs, and reports those that processes keep in use.
func (r *Reaper) checkHeld() {
	err := r.Executor.FreeHeld()
	held, err2 := r.store.Held()
	if err = errors.Join(err, err2); err != nil {
		r.leave("file systems of closed jobs", words.OneLine(err), "look again")
	}
	for _, h := range held {
		r.leave(fmt.Sprintf("uid %d", h.UID), h.String(), fmt.Sprintf("end the user's processes: ps -fU %d", h.UID))
	}
}

// checkClaims reports claims that cannot be read. Their devices stay claimed.
func (r *Reaper) checkClaims() {
	claims, err := r.store.Claims()
	if err != nil {
		r.leave("claims", words.OneLine(err), "look at the folder")
	}
	for _, c := range claims {
		if c.Err != nil && !errors.Is(c.Err, lease.ErrStaleBoot) {
			r.leave(string(c.UUID), "the claim on it cannot be read: "+words.OneLine(c.Err), stays)
		}
	}
}

// checkGPUs reports GPUs that are exclusive without a job. Their original mode is not known, so it is not changed.
func (r *Reaper) checkGPUs() {
	devices, err := r.gpus.Devices()
	if err != nil {
		r.leave("GPUs", "they cannot be seen: "+words.OneLine(err),
			"see docs/operator.md: the driver, and nvml_library in site.hcl")
		return
	}
	leased := r.leased()
	for _, device := range devices {
		if !leased[device.UUID] && r.exclusive(device.UUID) && r.exclusive(device.UUID) {
			r.leave(string(device.UUID), "it is in mode exclusive_process, and no job holds it; its mode before is not known",
				fmt.Sprintf("unless someone meant it: nvidia-smi -i %s -c DEFAULT", device.UUID))
		}
	}
}

// exclusive reports whether a GPU is exclusive and no job claims it. It asks twice, because an epilog may come
// between.
func (r *Reaper) exclusive(uuid site.UUID) bool {
	mode, err := r.gpus.Mode(uuid)
	if err != nil || mode != site.ModeExclusiveProcess {
		return false
	}
	_, held, err := r.store.Owner(uuid)
	return err == nil && !held
}

// leased returns the devices that a lease names, claimed or not.
func (r *Reaper) leased() map[site.UUID]bool {
	named := map[site.UUID]bool{}
	jobs, _ := r.store.Jobs()
	for _, job := range jobs {
		l, err := r.store.Read(job)
		if err != nil {
			continue
		}
		for _, held := range l.GPUs {
			named[held.UUID] = true
		}
	}
	return named
}
