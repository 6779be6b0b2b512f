// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
	"github.com/slurm-mps/slurm-mps/site/slurm/witness"
	"golang.org/x/sys/unix"
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

	stepOf    func(pid, first int) string // the step in which the node shows a process
	environ   []string                    // the environment of the program, without MPS's variables
	told      string                      // the value of toldVariable
	task      launch.Task                 // as read, also if the rank then takes a slot
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
	r := &run{PID: pid, Env: slurm.NewEnv(environ), Out: out, Err: errs, environ: environ, stepOf: witness.StepOf}
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
	if r.wantsNoGPU() {
		return r.runWithoutGPU(fmt.Sprintf("CUDA_VISIBLE_DEVICES is %q", r.rank.Visible), r.rank.Visible), nil
	}
	if err = r.readTicket(); err == nil {
		err = r.place()
	}
	if err != nil {
		return r.runRefused(err)
	}
	if launch.WithoutGPU(r.Env, r.task) {
		return r.runWithoutGPU("this step has none (srun --gres=none)", ""), nil
	}
	m := r.messages()
	m.remark(r.Env, r.placement, r.rank)
	if r.Options.OwnDaemon && r.Options.Report && r.ownStore == nil {
		m.once("own", errors.New("--own starts no daemon: the site's prolog has started one for this job"))
	}
	if r.Options.DryRun {
		return nil, r.placement.report(r.Out, r.Options.JSON, true)
	}
	if err := r.placement.waitReady(context.Background(), r.MPS, m.waits("waits"), r.giveUp); err != nil {
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
	r.ticket, err = findTicket(r.store, r.task)
	return err
}

// waitRoom waits while ranks that have ended take room on this rank's GPU. The guard limits the wait to the policy's
// hold. It returns the time that it has waited.
func (r *run) waitRoom(waits func(why string)) time.Duration {
	read := func() (lease.Room, error) { return r.store.ReadRoom(cmp.Or(r.ticket.Joined, r.ticket.Job.ID)) }
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

// hasStrangersDaemon reports whether the environment names an MPS daemon of ours that is not this job's: the job was
// submitted by a process of another job. The daemon's GPUs are the other job's, and it ends with that job.
func (r *run) hasStrangersDaemon() bool {
	pipe := r.Env["CUDA_MPS_PIPE_DIRECTORY"]
	job, ours := slurm.PipesOf(pipe)
	own := slices.Contains(r.task.JobIDs, job) ||
		slices.ContainsFunc(r.ticket.Daemons, func(d lease.Daemon) bool { return d.PipeDir == pipe })
	return ours && !own
}

// runRefused decides about a rank that has no placement. It runs without MPS if the job has none and the site's policy
// allows that.
func (r *run) runRefused(err error) ([]string, error) {
	refused, ok := errors.AsType[*refusedError](err)
	if !ok || !refused.Without || r.Options.DryRun {
		return nil, err
	}
	if r.task.LocalRank == 0 {
		r.messages().print(fmt.Errorf("running without MPS, as this site's policy allows: %w", err))
	}
	if r.hasStrangersDaemon() {
		return without(r.environ, slurm.StrangersNames(r.Env)...), nil
	}
	return r.environ, nil
}

// wantsNoGPU reports whether the user has hidden all GPUs from a program of a job with MPS, or of --own. The program
// then takes no place and no slot. Without a ticket the value may be Slurm's, for a job without a GPU, and the reason is
// printed that such a job has no MPS.
func (r *run) wantsNoGPU() bool {
	list, set := r.Env["CUDA_VISIBLE_DEVICES"]
	if !set || !hidesAll(list) {
		return false
	}
	err := r.findTicket()
	if _, none := errors.AsType[noTicketError](err); none {
		return r.MPS != nil && r.Options.OwnDaemon
	}
	return err == nil && r.ticket.RefusalReason == ""
}

// hidesAll reports whether CUDA shows no GPU with this list. It ignores the list from the first entry on that is none of
// a GPU. Scripts and older releases of Slurm write NoDevFiles.
func hidesAll(list string) bool {
	first, _, _ := strings.Cut(list, ",")
	return first == "" || first == "-1" || first == "NoDevFiles"
}

// runWithoutGPU returns the environment of a program for which CUDA shows no GPU, so it cannot run outside of MPS.
func (r *run) runWithoutGPU(why, visible string) []string {
	if r.Options.DryRun || r.Options.Report {
		r.messages().print(errors.New("running without a GPU and MPS: " + why))
	}
	if r.Options.DryRun {
		return nil
	}
	return withGPUs(r.environ, visible)
}

// runUnavailable decides about a rank that cannot use MPS. The rank runs without MPS if the site's policy allows that,
// and if the mode of the GPU allows more than one process. Otherwise the result is an error.
func (r *run) runUnavailable(err error) ([]string, error) {
	off, ok := errors.AsType[*unavailableError](err)
	if !ok || !r.ticket.RunWithoutMPS {
		return nil, err
	}
	if r.ticket.Exclusive {
		return nil, fmt.Errorf("%w; the policy's run_without does not help: the GPU is in EXCLUSIVE_PROCESS mode, "+
			"in which one process alone could use it", err)
	}
	r.messages().once("without", fmt.Errorf("running without MPS, as this site's policy allows: %w", off.cause))
	return withGPUs(r.environ, r.placement.visible()), nil
}

// Rank is all input for the placement of a rank.
type Rank struct {
	Task    launch.Task
	Binding launch.Binding
	CanOpen opener
	Options Options
	Shards  int    // the step's shards on this node; 0 for none
	Visible string // CUDA_VISIBLE_DEVICES, "" if it is not set
}

// readRank reads the description of the rank from the environment and the machine.
func (r *run) readRank() (err error) {
	r.readTask() // first, because it leaves only what is this task's own
	r.rank = Rank{Options: r.Options, CanOpen: r.canOpen, Visible: r.Env["CUDA_VISIBLE_DEVICES"]}
	if r.rank.Binding, err = launch.ReadBinding(r.Env); err != nil {
		return err
	}
	if r.rank.Shards, err = slurm.ShardsOnNode(r.Env); err != nil {
		return err
	}
	if r.Options.Slots == jobTasks {
		n, err := launch.TasksOnNode(r.Env)
		if err == nil && n == 1 { // one slot would run the processes one after the other
			err = errors.New("cannot count slots: the job or step has one task on this node")
		}
		if err != nil {
			return fmt.Errorf("%w: give the number: --slots=8", err)
		}
		r.rank.Options.Slots = n
	}
	if r.taskErr != nil {
		return r.taskErr
	}
	r.rank.Task = r.task
	return nil
}

func (r *run) canOpen(minor int) bool {
	return osfile.CanOpen(filepath.Join(r.Paths.Devices(), "nvidia"+strconv.Itoa(minor)))
}

// readTask reads the rank's place on its node, once. The variables that the job's submitter has handed on, and those of
// launchers that have not started this process, are removed from the run's, but not from the program's.
func (r *run) readTask() {
	if r.taskRead {
		return
	}
	r.taskRead = true
	first, _ := strconv.Atoi(r.Env["SLURM_TASK_PID"])
	r.Env = r.Env.Witnessed(r.stepOf(r.PID, first))
	r.task, r.taskErr = r.findTask()
	if r.taskErr != nil && r.Options.Slots != 0 { // the slot is the place
		r.task, r.taskErr = launch.ManualTask(r.Env, 0, 1)
	} else if r.taskErr != nil && r.Options.LocalSize == 0 {
		r.taskErr = fmt.Errorf("%w; or give --local-rank and --local-size", r.taskErr)
	}
}

func (r *run) findTask() (launch.Task, error) {
	if r.Options.LocalSize > 0 {
		return launch.ManualTask(r.Env, r.Options.LocalRank, r.Options.LocalSize)
	}
	first, _ := strconv.Atoi(r.Env["SLURM_TASK_PID"])
	if first > 0 && first != r.PID && launch.HasLauncher(r.Env) {
		env, err := launch.WithoutInheritedLauncher(r.Env, readOrigin(first, r.Env["PMI_FD"]))
		if err != nil {
			return launch.Task{}, err
		}
		r.Env = env
	}
	return launch.ReadTask(r.Env, r.PID)
}

func readOrigin(pid int, pmi string) launch.Origin {
	found := proc.Variables(context.Background(), proc.Process{PID: pid}, launch.OriginVariables()...)
	if found.Err != nil {
		found.Values = nil // a part proves nothing
	}
	hidden := proc.InOwnNamespace("pid") || proc.InOwnNamespace("user")
	return launch.Origin{Env: found.Values, Hidden: hidden, HasPMI: isInheritedSocket(pmi)}
}

// isInheritedSocket reports whether a number is a descriptor of a socket that this process has not opened itself. Go
// gives its own descriptors the close-on-exec flag.
func isInheritedSocket(number string) bool {
	fd, err := strconv.Atoi(number)
	if err != nil {
		return false
	}
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0 && unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// launchID names the launch of the rank, whose place was read before. All ranks of a launch on a node have the same
// parent, which has started them. The name is found once.
func (r *run) launchID() (string, error) {
	if r.launch != "" {
		return r.launch, nil
	}
	self, err := proc.ReadStat(r.PID)
	if err != nil {
		return "", err
	}
	var parent proc.Stat // none if it is outside of this pid namespace
	if self.Parent != 0 {
		if parent, err = proc.ReadStat(self.Parent); err != nil {
			return "", err
		}
	}
	r.launch = launchID(r.Env, r.task, parent.Process)
	return r.launch, nil
}

// launchID names one launch on this node, so that two launches of a job do not share messages. A launcher's own
// name for the launch comes first, because behind a shell the parent is not the launcher.
func launchID(env slurm.Env, task launch.Task, parent proc.Process) string {
	switch {
	case task.Source == launch.SourceStepd:
		return "step" + task.StepID
	case env["PMIX_NAMESPACE"] != "":
		return "pmix" + clean(env["PMIX_NAMESPACE"])
	case env["OMPI_MCA_ess_base_jobid"] != "":
		return "ompi" + clean(env["OMPI_MCA_ess_base_jobid"])
	case parent == proc.Process{}: // the first process of a container
		return "step" + task.StepID
	}
	return fmt.Sprintf("pid%d.%d", parent.PID, parent.Start)
}

// clean makes a launcher's name usable in a file name.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name[:min(len(name), 100)])
}
