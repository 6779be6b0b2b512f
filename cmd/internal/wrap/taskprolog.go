// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/slurm"
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
// reads both. It always exits with 0, because Slurm fails the task for any other code. Ranks exchange nothing here,
// because the task prologs of a step may run at different times, and have no flags.
func TaskProlog(p cli.Process) int {
	var l line
	switch err := l.parse(p.Args, own); {
	case errors.Is(err, errHelp):
		fmt.Fprint(p.Out, taskPrologUsage)
	case err != nil:
	case l.version:
		fmt.Fprintln(p.Out, cli.Version())
	default:
		env := slurm.NewEnv(p.Env)
		if err := printTask(p, l.paths, env); err != nil {
			printReason(p, env, err)
		}
	}
	return cli.ExitOK
}

// maxReason is how many bytes of a reason a task prolog prints. A longer reason is printed by mpirun-wrap, too, whole.
const maxReason = 500

// printReason prints why a task has no placement, once for the node, and not again if the batch script's task prolog has
// printed it. It lets mpirun-wrap know that. Slurm drops no such line, also if the task ends at once (120 of 120 steps of
// Slurm 22.05).
func printReason(p cli.Process, env slurm.Env, err error) {
	id, _ := strconv.Atoi(env["SLURM_LOCALID"])
	reason, first := reasonOf(err, slurm.Task{LocalRank: id}), env["SLURM_LOCALID"] == "0"
	if toldByBatch(env[toldVariable], env, reason) {
		return
	}
	printed := site.OneLine(err)
	if first {
		fmt.Fprintf(p.Out, "print slurm-mps: %.*s\n", maxReason, printed)
	}
	if len(printed) <= maxReason && (first || isOfJob(err)) {
		fmt.Fprintf(p.Out, "export %s=%s\n", toldVariable, hashOf(env, env["SLURM_STEP_ID"], reason))
	}
}

// printTask prints the placement of a task. The error is the reason why a task of a job with MPS has no placement.
func printTask(p cli.Process, paths site.Paths, env slurm.Env) error {
	options, wrong := mpirunwrap.ReadOptions(env)
	if wrong != nil {
		options = mpirunwrap.Options{}
	}
	options.Slots = 0 // the lock of a slot would end with this process
	pid, _ := strconv.Atoi(env["SLURM_TASK_PID"])
	rank, err := readRank(paths, env, pid, options)
	if err != nil {
		return nil // mpirun-wrap prints it, if the job has MPS
	}
	ticket, err := findTicket(paths, rank.Task)
	switch {
	case err != nil:
		return nil // the job has no MPS
	case wrong != nil:
		return optionError{wrong}
	case options.Off && ticket.Exclusive:
		return errOff
	case options.Off:
		return nil
	}
	if slurm.WithoutGPU(env, rank.Task) { // the batch script's variables are inherited
		fmt.Fprintln(p.Out, "export CUDA_VISIBLE_DEVICES=\nunset CUDA_MPS_PIPE_DIRECTORY")
		return nil
	}
	place := mpirunwrap.Place
	if rank.Task.StepID == "" || slurm.IsLauncherStep(env) { // a batch script, an interactive shell or a launcher's daemon
		if ticket.RefusalReason == "" && ticket.Grant.Unplaced == policy.UnplacedDeny {
			return nil
		}
		place = mpirunwrap.PlaceUnplaced
	}
	placement, err := place(ticket, rank)
	if err == nil {
		err = placement.CheckDaemon()
	}
	if err != nil {
		return err
	}
	if read := roomOf(paths, placement); read != nil {
		waited := placement.WaitRoom(context.Background(), read, nil)
		if waited > time.Second && env["SLURM_LOCALID"] == "0" {
			fmt.Fprintf(p.Out, "print slurm-mps: waited %v for ranks that ended and may have work on the GPU\n", waited.Round(100*time.Millisecond))
		}
	}
	_ = placement.Export(p.Out) // the task need not fail if Slurm does not read the lines
	return nil
}
