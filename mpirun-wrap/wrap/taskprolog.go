// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"errors"
	"fmt"
	"strconv"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site/cli"
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
	run := mpirunwrap.NewRun(0, p.Env, p.Out, nil)
	run.PID, _ = strconv.Atoi(run.Env["SLURM_TASK_PID"])
	switch version, err := parseFlags(p.Args, run, ownFlags); {
	case errors.Is(err, errHelp):
		fmt.Fprint(p.Out, taskPrologUsage)
	case err != nil:
	case version:
		fmt.Fprintln(p.Out, cli.Version())
	default:
		run.PrintTask()
	}
	return cli.ExitOK
}
