// SPDX-License-Identifier: Apache-2.0

package state

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

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm/steps"
	"github.com/slurm-mps/slurm-mps/site/words"
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

// reaper reaps a node once.
type reaper struct {
	Executor Executor // NewReaper sets that of a dry run

	reader *Reader
	only   uint32 // the job that the admin calls gone; 0 for none
	self   proc.Process

	running  steps.Steps                     // at the beginning
	unleased map[uint32][]lease.OrphanDaemon // our daemons without a lease, by the job in their environment
	unseen   error                           // why these are not known
	results  []Result
}

// NewReaper returns a reaper for all jobs, or for one job that the admin calls gone. It changes nothing until it has
// another Executor.
func NewReaper(paths site.Paths, job uint32) (*reaper, error) {
	self, err := proc.Current()
	if err != nil {
		return nil, err
	}
	reader, err := Open(paths, "", false)
	return &reaper{Executor: dryRun{}, reader: reader, only: job, self: self}, err
}

// Run checks everything, and changes only proved leftovers of an ended job.
func (r *reaper) Run(ctx context.Context) ([]Result, error) {
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
		r.reapNode(ctx)
	}
	return append([]Result{}, r.results...), nil
}

// jobs returns all jobs that have something here, in order.
func (r *reaper) jobs() ([]uint32, error) {
	if r.only != 0 {
		return []uint32{r.only}, nil
	}
	var all []uint32
	for _, list := range []func() ([]uint32, error){r.reader.Store.Jobs, r.reader.Store.Tickets, r.reader.Store.Dirs, r.reader.Store.LockedJobs} {
		jobs, err := list()
		if err != nil {
			return nil, err
		}
		all = append(all, jobs...)
	}
	all = slices.AppendSeq(all, maps.Keys(r.unleased))
	slices.Sort(all)
	return slices.Compact(all), nil
}

// job handles one job. It judges the job again under its lock, because only then no one else can change it.
func (r *reaper) job(job uint32) Result {
	result, _ := r.judge(job, r.running)
	if result.Action != Close && result.Action != remove {
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
func (r *reaper) close(ctx context.Context, job uint32) Result {
	locking, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	release, err := r.Executor.Lock(locking, job)
	if busy, ok := errors.AsType[*lease.BusyError](err); ok {
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
	case remove:
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

// leftover is the rest of a job: a lease, or files without one.
type leftover struct {
	lease   *lease.Lease
	daemons []lease.OrphanDaemon
}

// judge returns the action for a job. There is none if the job has left nothing.
func (r *reaper) judge(job uint32, running steps.Steps) (Result, leftover) {
	if holder, acting := r.reader.Store.LockHolder(job); acting && holder != r.self {
		return r.busy(job, holder), leftover{}
	}
	l, err := r.reader.Store.Read(job)
	result := resultOf(job)
	switch {
	case errors.Is(err, lease.ErrStaleBoot):
		return r.withoutLease(result, "its lease is of another boot: nothing is left of it but files", running)
	case errors.Is(err, lease.ErrNotFound):
		return r.withoutLease(result, "", running)
	case err != nil:
		return result.leave("its lease cannot be read: "+words.OneLine(err), stays(r.reader.Run)), leftover{}
	}
	return r.withLease(result, l, running), leftover{lease: &l}
}

// withLease judges a lease of this boot.
func (r *reaper) withLease(result Result, l lease.Lease, running steps.Steps) Result {
	if lease.IsShared(l.Job.ID) {
		return r.shared(result, l.Job.ID)
	}
	sign, named := running.Sign(l.Job.ID, l.SLUID), r.only == l.Job.ID
	switch {
	case sign != "" && l.Phase == lease.Opened && !named:
		return result.act(keep, "it runs: "+sign)
	case sign != "":
		return result.leave("Slurm has a step of it here: "+sign, fmt.Sprintf("end it first: scancel %d", l.Job.ID))
	case unfinished[Phase(l.Phase)] != "":
		return result.act(Close, unfinished[Phase(l.Phase)])
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
	return result.leave(reason, r.reader.Paths.IfGone(l.Job.ID))
}

// shared judges the lease of a daemon that several jobs share. Slurm knows no job of its number. The prolog of a job writes
// the job's lease first, so a shared lease without members has none on the way.
func (r *reaper) shared(result Result, id uint32) Result {
	members, err := r.reader.Store.Members(id)
	switch users := strings.Trim(fmt.Sprint(members), "[]"); {
	case err != nil:
		return result.leave("the jobs that use it are not known: "+words.OneLine(err), stays(r.reader.Run))
	case len(members) > 0:
		return result.act(keep, "jobs use it: "+users)
	}
	return result.act(Close, "no job uses it")
}

// withoutLease judges the files of a job that has no lease of this boot.
func (r *reaper) withoutLease(result Result, void string, running steps.Steps) (Result, leftover) {
	job := result.Job
	ticket, err := r.reader.Store.ReadTicket(job)
	ticketed := err == nil && ticket.RefusalReason == ""
	refused := err == nil && ticket.RefusalReason != ""
	if err != nil && !errors.Is(err, lease.ErrNotFound) && !errors.Is(err, lease.ErrStaleBoot) {
		return result.leave("its ticket cannot be read: "+words.OneLine(err), stays(r.reader.Run)), leftover{}
	}
	daemons := slices.DeleteFunc(slices.Clone(r.unleased[job]),
		func(d lease.OrphanDaemon) bool { return !d.Daemon.Proc.Running() })
	found := r.files(job, ticketed || errors.Is(err, lease.ErrStaleBoot))
	for _, d := range daemons {
		found = append(found, fmt.Sprintf("a control daemon or server, pid %d", d.Daemon.Proc.PID))
	}
	if void != "" {
		found = append(found, "a lease of another boot")
	}
	if locked, _ := r.reader.Store.LockedJobs(); len(found) == 0 && slices.Contains(locked, job) {
		found = append(found, "the lock of a prolog or an epilog that was killed") // temporary files may be there too
	}
	sign := running.Sign(job, "")
	switch {
	case void != "" && !refused && len(daemons) == 0:
		return result.act(remove, void), leftover{}
	case refused && len(found) == 0 && r.only != job:
		return Result{}, leftover{} // its user knows that the job has no MPS, and the job may run
	case refused && (sign != "" || r.only != job):
		return result.leave(fmt.Sprintf("it was refused and may run, and there is %s", strings.Join(found, ", ")),
			"when the job is gone: "+r.reader.Paths.ReapCommand(job)), leftover{}
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
	return result.act(remove, "no lease names "+strings.Join(found, ", ")), leftover{daemons: daemons}
}

func (r *reaper) files(job uint32, ticketed bool) []string {
	var found []string
	if ticketed {
		found = append(found, "a ticket")
	}
	if _, err := os.Lstat(r.reader.Store.JobDir(job)); err == nil {
		found = append(found, "a folder")
	}
	return found
}

// busy is the result for a job that someone else works on. For a job that the admin has named it is a failure.
func (r *reaper) busy(job uint32, holder proc.Process) Result {
	result := resultOf(job)
	why := "a prolog or an epilog is at work on it"
	if holder.PID != 0 {
		why += ": " + holder.String()
	}
	if r.only == job {
		return result.leave(why, "wait for it, and try again")
	}
	return result.act(keep, why)
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
func stays(run string) string {
	const why = "one that is not root's own, or of another version, stays until a person moves it away: "
	return why + words.Step("ls", "-lR", "-I", "jobs", run)
}

func (r *reaper) leave(where, reason, fix string) {
	r.results = append(r.results, Result{Where: where}.leave(reason, fix))
}

// takeCensus finds daemons and servers below our folder that no lease may name. The process shows its job: the pipe
// folder in its environment is in a folder of the job, and its uid is the owner of that folder.
func (r *reaper) takeCensus(ctx context.Context) {
	r.unleased = map[uint32][]lease.OrphanDaemon{}
	census, err := mps.FindAll(ctx)
	if err != nil {
		r.unseen = err
		return
	}
	for _, p := range census {
		if p.Role == mps.RoleQuery || p.PipeDir != r.reader.Run && !strings.HasPrefix(p.PipeDir, r.reader.Run+"/") {
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
func (r *reaper) jobOf(p mps.Process) (job uint32, ok bool) {
	name, err := filepath.Rel(filepath.Join(r.reader.Run, "jobs"), p.PipeDir)
	parts := strings.Split(name, "/")
	if err != nil || len(parts) != 3 || p.UID == 0 {
		return 0, false
	}
	id, err1 := strconv.ParseUint(parts[0], 10, 32)
	n, err2 := strconv.ParseUint(parts[1], 10, 16)
	if errors.Join(err1, err2) != nil || p.PipeDir != filepath.Join(r.reader.Store.DaemonDir(uint32(id), int(n)), "pipe") {
		return 0, false
	}
	info, err := os.Lstat(p.PipeDir)
	if errors.Is(err, fs.ErrNotExist) {
		return uint32(id), true
	}
	return uint32(id), err == nil && info.Sys().(*syscall.Stat_t).Uid == p.UID
}

// reapNode frees the file systems of closed jobs. It leaves what belongs to no job, and what it has not seen.
func (r *reaper) reapNode(ctx context.Context) {
	if err := r.Executor.FreeBusy(); err != nil {
		r.leave("file systems of closed jobs", words.OneLine(err), "look again")
	}
	n, found := r.reader.Inspect(ctx, ofNoJob)
	for _, f := range found {
		r.leave(f.Where, f.What, f.Fix)
	}
	for _, what := range n.Incomplete {
		r.leave("this node", "a part was not seen: "+what, "look again")
	}
}

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
	// FreeBusy unmounts the file systems of closed jobs that are in use no more.
	FreeBusy() error
}

// dryRun changes nothing, and takes no lock.
type dryRun struct{}

func (dryRun) Within(act func(context.Context) error) error             { return act(context.Background()) }
func (dryRun) Lock(context.Context, uint32) (func(), error)             { return func() {}, nil }
func (dryRun) Undo(context.Context, lease.Lease) error                  { return nil }
func (dryRun) Void(context.Context, uint32, []lease.OrphanDaemon) error { return nil }
func (dryRun) FreeBusy() error                                          { return nil }
