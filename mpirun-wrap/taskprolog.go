// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
	"github.com/slurm-mps/slurm-mps/site/words"
)

const taskPrologUsage = `task-prolog runs as slurmd's TaskProlog=. It prints the environment of
one task for Slurm: its GPU and its share of it. The batch script has all GPUs
of the job. It is for programs that run without mpirun-wrap.

  --root DIR          look for the job's ticket below DIR
  --version, --help

It always exits with 0. If a task has no MPS, the first task of the node gets a
line with the reason on its output.
`

// TaskProlog is the program task-prolog. It writes lines for Slurm on stdout and nothing on stderr, because Slurm
// reads both. It always exits with 0, because Slurm fails the task for any other code.
func TaskProlog(p cli.Process) int {
	run := newRun(0, p.Env, p.Out, nil)
	run.PID, _ = strconv.Atoi(run.Env["SLURM_TASK_PID"])
	run.giveUp = func(err error) {
		run.printUnplaced(err)
		os.Exit(cli.ExitOK)
	}
	switch version, err := parseFlags(p.Args, run, nil); {
	case errors.Is(err, cli.ErrHelp):
		fmt.Fprint(p.Out, taskPrologUsage)
	case err != nil:
	case version:
		fmt.Fprintln(p.Out, cli.Version())
	default:
		run.printTask()
	}
	return cli.ExitOK
}

// printTask prints lines for Slurm with the placement of a task, or with the reason why a task of a job with MPS has
// none.
func (r *run) printTask() {
	if err := r.printPlacement(); r.placement == nil {
		r.printUnplaced(err)
	}
}

// printUnplaced prints lines for a task that gets no placement: the reason, if its job has MPS, and the removal of a
// daemon that is not its own. The task keeps a daemon of its user's. It loses that of the job that has submitted this
// one: it would compute on that job's GPU, and die at its end.
func (r *run) printUnplaced(err error) {
	if err != nil {
		r.printReason(err)
	}
	if r.hasStrangersDaemon() {
		for _, name := range slurm.StrangersNames(r.Env) {
			fmt.Fprintf(r.Out, "unset %s\n", name)
		}
	}
}

// isFirst reports whether the task is the node's first, which alone prints lines for the user.
func (r *run) isFirst() bool { return r.Env["SLURM_LOCALID"] == "0" }

// maxReason is how many bytes of a reason a task prolog prints. A longer reason is printed by mpirun-wrap, too, whole.
const maxReason = 500

// printReason prints why a task has no placement, once for the node, and not again if the batch script's task prolog has
// printed it. It lets mpirun-wrap know that. Slurm drops no such line, also if the task ends at once (120 of 120 steps of
// Slurm 22.05).
func (r *run) printReason(err error) {
	id, _ := strconv.Atoi(r.Env["SLURM_LOCALID"])
	reason := reasonOf(err, launch.Task{LocalRank: id})
	if toldByBatch(r.told, r.Env, reason) {
		return
	}
	printed := words.OneLine(err)
	if r.isFirst() {
		fmt.Fprintf(r.Out, "print slurm-mps: %.*s\n", maxReason, printed)
	}
	if len(printed) <= maxReason && (r.isFirst() || isOfJob(err)) {
		fmt.Fprintf(r.Out, "export %s=%s\n", toldVariable, hashOf(r.Env, r.Env["SLURM_STEP_ID"], reason))
	}
}

// printPlacement prints the placement of a task. The error is the reason why a task of a job with MPS has none.
func (r *run) printPlacement() (err error) {
	options, wrong := ReadOptions(r.Env)
	if wrong == nil {
		r.Options = options
	}
	r.Options.Slots = 0 // the lock of a slot would end with this process
	if err := r.readRank(); err != nil {
		return nil // mpirun-wrap prints it, if the job has MPS
	}
	err = r.findTicket()
	switch {
	case err != nil:
		return nil // the job has no MPS
	case wrong != nil:
		return optionError{wrong}
	case r.Options.Off && r.ticket.Exclusive:
		return errOff
	case r.Options.Off:
		return nil
	}
	if launch.WithoutGPU(r.Env, r.task) { // the batch script's variables are inherited
		fmt.Fprintln(r.Out, "export CUDA_VISIBLE_DEVICES=\nunset CUDA_MPS_PIPE_DIRECTORY")
		return nil
	}
	place := Place
	if r.task.StepID == "" || launch.IsLauncherStep(r.Env) { // a batch script, an interactive shell or a launcher's daemon
		if r.ticket.RefusalReason == "" && r.ticket.Grant.Unplaced == policy.UnplacedDeny {
			return nil
		}
		place = placeNonRank
		if nodes := r.Env["SLURM_JOB_NUM_NODES"]; nodes != "" && nodes != "1" {
			r.rank.Options.Indices = true // hydra gives ranks on other nodes these variables, and the UUIDs differ there
		}
	}
	placement, err := place(r.ticket, r.rank)
	if err == nil {
		err = placement.checkDaemon(r.giveUp)
	}
	if err != nil {
		return err
	}
	r.placement = placement
	if waited := r.waitRoom(nil); waited > time.Second && r.isFirst() {
		fmt.Fprintf(r.Out, "print slurm-mps: waited %v for ranks that ended and may have work on the GPU\n", waited.Round(100*time.Millisecond))
	}
	_, _ = io.WriteString(r.Out, r.placement.exports()) // the task need not fail if Slurm does not read the lines
	return nil
}

// optionError is an error in a variable, which all tasks of a step have.
type optionError struct{ error }

// isOfJob reports whether an error of one task is an error of all tasks of the job or step.
func isOfJob(err error) bool {
	_, refused := errors.AsType[*refusedError](err)
	_, option := errors.AsType[optionError](err)
	return refused || option || errors.Is(err, errOff)
}
