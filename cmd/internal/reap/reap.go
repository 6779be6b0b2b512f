// SPDX-License-Identifier: Apache-2.0

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

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/node"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
)

// Act is what becomes of a thing, a word for programs.
type Act string

// Close undoes a lease and Remove takes away what has none. Keep is what is right as it is, and Leave what an admin decides on.
const (
	Close  Act = "close"
	Remove Act = "remove"
	Keep   Act = "keep"
	Leave  Act = "leave"
)

// Line is one thing that a reaping has looked at.
type Line struct {
	Job    uint32 `json:"job,omitempty"`
	Where  string `json:"where"`
	Act    Act    `json:"act"`
	Why    string `json:"why"`
	Do     string `json:"do,omitempty"`     // what an admin does
	Failed string `json:"failed,omitempty"` // why the act was not done
}

// reaper reaps a node, once.
type reaper struct {
	paths   site.Paths
	journal *lease.Journal
	only    uint32 // the job that an admin says is gone; 0 for none
	self    site.Proc
	hands   hands

	steps    signs                      // as of the beginning
	unleased map[uint32][]node.Unleased // daemons of ours, by the job that they say they are of
	unseen   error                      // why these are not known
	lines    []Line
}

// reap looks at everything and does what can be proved to be right.
func (r *reaper) reap(ctx context.Context) ([]Line, error) {
	var err error
	if r.steps, err = lookForSteps(); err != nil {
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
		if line := r.job(job); line.Act != "" {
			r.lines = append(r.lines, line)
		}
	}
	if r.only == 0 {
		r.lookAtClaims()
		r.lookAtGPUs()
	}
	return append([]Line{}, r.lines...), nil
}

// jobs are all that have something here, in order.
func (r *reaper) jobs() ([]uint32, error) {
	if r.only != 0 {
		return []uint32{r.only}, nil
	}
	all := map[uint32]bool{}
	for _, list := range []func() ([]uint32, error){r.journal.Jobs, r.journal.Tickets, r.journal.Dirs, r.journal.Turns} {
		jobs, err := list()
		if err != nil {
			return nil, err
		}
		for _, job := range jobs {
			all[job] = true
		}
	}
	claims, err := r.journal.Claims()
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

// job deals with one job. It is judged again when its turn is taken: only then does nobody else change it.
func (r *reaper) job(job uint32) Line {
	line, _ := r.judge(job, r.steps)
	if line.Act != Close && line.Act != Remove {
		return line
	}
	dealt := make(chan Line, 1)
	err := r.hands.within(func(ctx context.Context) error {
		dealt <- r.deal(ctx, job)
		return nil
	})
	select {
	case line = <-dealt:
	default:
		line.Failed = cli.OneLine(err)
	}
	return line
}

func (r *reaper) deal(ctx context.Context, job uint32) Line {
	release, err := r.hands.take(ctx, job)
	var busy *lease.BusyError
	if errors.As(err, &busy) {
		return r.busy(job, busy.Holder)
	}
	if err != nil {
		return Line{Job: job, Where: where(job), Act: Leave, Why: cli.OneLine(err)}
	}
	defer release()
	steps, err := lookForSteps()
	if err != nil {
		return Line{Job: job, Where: where(job), Act: Leave, Why: cli.OneLine(err)}
	}
	line, left := r.judge(job, steps)
	switch line.Act {
	case Close:
		err = r.hands.undo(ctx, *left.lease)
	case Remove:
		err = r.hands.void(ctx, job, left.daemons)
	}
	if err != nil {
		line.Failed = cli.OneLine(err)
	}
	return line
}

// left is what there is to undo of a job: a lease, or what has none.
type left struct {
	lease   *lease.Lease
	daemons []node.Unleased
}

// judge says what becomes of a job; no Act for one of which there is nothing.
func (r *reaper) judge(job uint32, steps signs) (Line, left) {
	if holder, acting := r.journal.Acting(job); acting && holder != r.self {
		return r.busy(job, holder), left{}
	}
	l, err := r.journal.Read(job)
	line := Line{Job: job, Where: where(job)}
	switch {
	case errors.Is(err, lease.ErrVoid):
		return r.unled(line, "its lease is of another boot: nothing is left of it but files", steps)
	case errors.Is(err, lease.ErrNone):
		return r.unled(line, "", steps)
	case err != nil:
		return line.leave("its lease cannot be read: "+cli.OneLine(err), "look at the file: it stays until a person moves it away"), left{}
	}
	return r.led(line, l, steps), left{lease: &l}
}

// led judges a lease of this boot.
func (r *reaper) led(line Line, l lease.Lease, steps signs) Line {
	sign, said := steps.sign(l.Job.ID), r.only == l.Job.ID
	switch {
	case sign != "" && l.Phase == lease.Opened && !said:
		return line.act(Keep, "it runs: "+sign)
	case sign != "":
		return line.leave("Slurm has a step of it here: "+sign, fmt.Sprintf("end it first: scancel %d", l.Job.ID))
	case l.Phase == lease.Opening:
		return line.act(Close, "its prolog has died before the job was ready")
	case l.Phase == lease.Closing:
		return line.act(Close, "its epilog has begun and did not end well")
	case l.Phase != lease.Opened:
		return line.leave(fmt.Sprintf("its lease is in phase %q, which this program does not know", l.Phase), "use the version that wrote it")
	case said:
		return line.act(Close, "you say that it is gone")
	}
	why := "no step of it is here: it may be an allocation without a step"
	if pid := ofUser(l.Job.ID, l.Job.UID); pid != 0 {
		why = fmt.Sprintf("no step of it is here, and pid %d of its user was started in it", pid)
	}
	return line.leave(why, fmt.Sprintf("when squeue -j %d says that the job is gone: %s", l.Job.ID, node.Reap(r.paths, l.Job.ID)))
}

// unled judges what there is of a job that has no lease of this boot.
func (r *reaper) unled(line Line, void string, steps signs) (Line, left) {
	job := line.Job
	ticket, err := r.journal.ReadTicket(job)
	ticketed := err == nil && ticket.Refused == ""
	refused := err == nil && ticket.Refused != ""
	if err != nil && !errors.Is(err, lease.ErrNone) && !errors.Is(err, lease.ErrVoid) {
		return line.leave("its ticket cannot be read: "+cli.OneLine(err), "look at the file: it stays until a person moves it away"), left{}
	}
	daemons := r.living(job)
	found := r.files(job, ticketed || errors.Is(err, lease.ErrVoid))
	for _, d := range daemons {
		found = append(found, fmt.Sprintf("a control daemon or server, pid %d", d.Daemon.Proc.PID))
	}
	if void != "" {
		found = append(found, "a lease of another boot")
	}
	if turns, _ := r.journal.Turns(); len(found) == 0 && slices.Contains(turns, job) {
		found = append(found, "the turn of an act that was killed") // beside which temporary files may lie
	}
	sign := steps.sign(job)
	switch {
	case void != "" && !refused && len(daemons) == 0:
		return line.act(Remove, void), left{}
	case refused && len(found) == 0 && r.only != job:
		return Line{}, left{} // the job was told that it has no MPS; it may run
	case refused && (sign != "" || r.only != job):
		return line.leave(fmt.Sprintf("it was refused and may run, and there is %s", strings.Join(found, ", ")), "when the job is gone: "+node.Reap(r.paths, job)), left{}
	case refused:
		found = append(found, "a refusal")
	case len(found) == 0:
		return Line{}, left{}
	case sign != "" && (ticketed || len(daemons) > 0):
		return line.leave(fmt.Sprintf("it has no lease, and Slurm has a step of it here: %s", sign), fmt.Sprintf("requeue it: scontrol requeue %d", job)), left{}
	}
	if r.unseen != nil && slices.Contains(found, "a folder") {
		return line.leave("its folder may be in use: "+cli.OneLine(r.unseen), "try again"), left{}
	}
	return line.act(Remove, "no lease names "+strings.Join(found, ", ")), left{daemons: daemons}
}

// files are what a job has beside a lease.
func (r *reaper) files(job uint32, ticketed bool) []string {
	var found []string
	if ticketed {
		found = append(found, "a ticket")
	}
	if _, err := os.Lstat(r.journal.JobDir(job)); err == nil {
		found = append(found, "a folder")
	}
	claims, _ := r.journal.Claims()
	for _, claim := range claims {
		if claim.Job == job {
			found = append(found, "the claim on "+string(claim.UUID))
		}
	}
	return found
}

// busy is a job that somebody else is at work on. Who names the job wants it done.
func (r *reaper) busy(job uint32, holder site.Proc) Line {
	line := Line{Job: job, Where: where(job)}
	why := "a prolog or an epilog is at work on it"
	if holder.PID != 0 {
		why += ": " + holder.String()
	}
	if r.only == job {
		return line.leave(why, "wait for it, and try again")
	}
	return line.act(Keep, why)
}

func (l Line) act(act Act, why string) Line {
	l.Act, l.Why = act, why
	return l
}

func (l Line) leave(why, do string) Line {
	l.Act, l.Why, l.Do = Leave, why, do
	return l
}

func where(job uint32) string { return fmt.Sprintf("job %d", job) }

// takeCensus finds daemons and servers below our folder that no lease may name. Whose they are their own process says: the
// pipe folder in its environment is a job's, and its uid is that folder's owner.
func (r *reaper) takeCensus(ctx context.Context) {
	r.unleased = map[uint32][]node.Unleased{}
	census, err := mps.Census(ctx)
	if err != nil {
		r.unseen = err
		r.lines = append(r.lines, Line{Where: "processes of MPS"}.leave("they cannot be seen: "+cli.OneLine(err), "look for them: pgrep -a nvidia-cuda-mps"))
		return
	}
	for _, p := range census {
		if p.Role == mps.RoleAsking || p.PipeDir != r.paths.Run() && !strings.HasPrefix(p.PipeDir, r.paths.Run()+"/") {
			continue
		}
		job, ok := r.jobOf(p)
		if ok {
			r.unleased[job] = append(r.unleased[job], node.Unleased{
				Job: lease.Job{ID: job, UID: p.UID}, Daemon: lease.Daemon{PipeDir: p.PipeDir, Proc: p.Proc},
			})
		} else if r.only == 0 {
			r.lines = append(r.lines, Line{Where: p.Proc.String()}.leave(
				fmt.Sprintf("a process of MPS, of uid %d, with the pipe folder %q below ours, and not proved to be a job's", p.UID, p.PipeDir),
				fmt.Sprintf("see whose it is: ps -fp %d", p.PID)))
		}
	}
}

// jobOf is the job of a process of MPS by its pipe folder: jobs/ID/N/pipe.
func (r *reaper) jobOf(p mps.Process) (job uint32, ok bool) {
	name, err := filepath.Rel(filepath.Join(r.paths.Run(), "jobs"), p.PipeDir)
	parts := strings.Split(name, "/")
	if err != nil || len(parts) != 3 || p.UID == 0 {
		return 0, false
	}
	id, err1 := strconv.ParseUint(parts[0], 10, 32)
	n, err2 := strconv.ParseUint(parts[1], 10, 16)
	if errors.Join(err1, err2) != nil || p.PipeDir != filepath.Join(r.journal.DaemonDir(uint32(id), int(n)), "pipe") {
		return 0, false
	}
	info, err := os.Lstat(p.PipeDir)
	if errors.Is(err, fs.ErrNotExist) {
		return uint32(id), true
	}
	return uint32(id), err == nil && info.Sys().(*syscall.Stat_t).Uid == p.UID
}

// living are the daemons of a job without a lease that are still there.
func (r *reaper) living(job uint32) []node.Unleased {
	var there []node.Unleased
	for _, d := range r.unleased[job] {
		if d.Daemon.Proc.Alive() {
			there = append(there, d)
		}
	}
	return there
}

// lookAtClaims says which claims cannot be read: they hold their device, whoever made them.
func (r *reaper) lookAtClaims() {
	claims, err := r.journal.Claims()
	if err != nil {
		r.lines = append(r.lines, Line{Where: "claims"}.leave(cli.OneLine(err), "look at the folder"))
	}
	for _, c := range claims {
		if c.Err != nil && !errors.Is(c.Err, lease.ErrVoid) {
			r.lines = append(r.lines, Line{Where: string(c.UUID)}.leave("the claim on it cannot be read: "+cli.OneLine(c.Err), "look at the file: it stays until a person moves it away"))
		}
	}
}

// lookAtGPUs says which GPUs are exclusive for nobody. Their mode before is not known, so it is not changed.
func (r *reaper) lookAtGPUs() {
	gpus := node.LookAt(r.paths)
	devices, err := gpus.Devices()
	if err != nil {
		r.lines = append(r.lines, Line{Where: "GPUs"}.leave("they cannot be seen: "+cli.OneLine(err), "see docs/operator.md: the driver, and nvml_library in site.hcl"))
		return
	}
	leased := r.leased()
	for _, device := range devices {
		if !leased[device.UUID] && r.exclusive(gpus, device.UUID) && r.exclusive(gpus, device.UUID) {
			r.lines = append(r.lines, Line{Where: string(device.UUID)}.leave("it is in mode exclusive_process, and no job holds it; its mode before is not known",
				fmt.Sprintf("unless somebody meant it: nvidia-smi -i %s -c DEFAULT", device.UUID)))
		}
	}
}

// exclusive reports whether a GPU is exclusive and nobody has claimed it. It is asked twice: an epilog may come between.
func (r *reaper) exclusive(gpus node.GPUs, uuid site.UUID) bool {
	mode, err := gpus.Mode(uuid)
	if err != nil || mode != site.ModeExclusiveProcess {
		return false
	}
	_, held, err := r.journal.Holder(uuid)
	return err == nil && !held
}

// leased are the devices that a lease names, whether it has claimed them or not.
func (r *reaper) leased() map[site.UUID]bool {
	named := map[site.UUID]bool{}
	jobs, _ := r.journal.Jobs()
	for _, job := range jobs {
		l, err := r.journal.Read(job)
		if err != nil {
			continue
		}
		for _, held := range l.Held {
			named[held.UUID] = true
		}
	}
	return named
}
