// Package rank is what the doors that run as the user, once for every rank, share. Both are static and link no C, no
// NVML, no HCL and no cobra: they run in containers too, thousands at a time.
package rank

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

const wrapUsage = `mpirun-wrap runs one rank of a job under NVIDIA MPS, on its own GPU and with its own share of it.

  srun mpirun-wrap [flags] [--] PROGRAM [ARG...]
  mpirun mpirun-wrap [flags] [--] PROGRAM [ARG...]

Flags stand before the program; all that follows is the program's.
  --root DIR   look for the job's ticket below DIR
  --version    print the version
  --help       print this

It exits with the program's own code; 125 where it cannot seat the rank, 126 where the program cannot be executed, 127
where it is not found.
`

// Wrap is the door of mpirun-wrap. It returns only where the program could not be run.
func Wrap(p cli.Process) int {
	var paths site.Paths
	flags := flag.NewFlagSet("mpirun-wrap", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&paths.Root, "root", "", "")
	version := flags.Bool("version", false, "")
	switch err := flags.Parse(p.Args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(p.Out, wrapUsage)
		return cli.OK
	case err != nil:
		p.Complain("mpirun-wrap", fmt.Errorf("cannot read flags: %w: see mpirun-wrap --help", err))
		return cli.WrapperFailed
	case *version:
		fmt.Fprintln(p.Out, cli.Version())
		return cli.OK
	case flags.NArg() == 0:
		p.Complain("mpirun-wrap", errors.New("cannot run a program: none is given: see mpirun-wrap --help"))
		return cli.WrapperFailed
	}
	env, err := seated(p, paths)
	if err == nil {
		err = mpirunwrap.Exec(flags.Args(), env)
	}
	p.Complain("mpirun-wrap", err)
	var program *mpirunwrap.ProgramError
	if errors.As(err, &program) {
		return program.Code
	}
	return cli.WrapperFailed
}

// seated is the environment for the rank's program. Where the site lets the job run without MPS it is the environment as
// it was, and the first rank of the node says so.
func seated(p cli.Process, paths site.Paths) ([]string, error) {
	task, err := slurm.ReadTask(slurm.NewEnviron(p.Env), p.PID)
	if err != nil {
		return nil, err
	}
	seat, err := take(paths, task)
	var refused *mpirunwrap.RefusedError
	if errors.As(err, &refused) && refused.Without {
		if task.LocalRank == 0 {
			p.Complain("mpirun-wrap", fmt.Errorf("running without MPS, as this site's policy says: %w", err))
		}
		return p.Env, nil
	}
	if err != nil {
		return nil, err
	}
	if err := seat.Check(); err != nil {
		return nil, err
	}
	return seat.Environment(p.Env), nil
}

func take(paths site.Paths, task slurm.Task) (mpirunwrap.Seat, error) {
	boot, err := site.BootID()
	if err != nil {
		return mpirunwrap.Seat{}, err
	}
	ticket, err := mpirunwrap.FindTicket(lease.Reader(paths.Run(), boot), task)
	if err != nil {
		return mpirunwrap.Seat{}, err
	}
	return mpirunwrap.Take(ticket, task)
}

// TaskProlog is the door of task-prolog: lines for Slurm on stdout, and nothing else anywhere, since Slurm takes stderr
// for lines too and a failure for the task's. The batch script is no rank and gets no seat.
func TaskProlog(p cli.Process) int {
	var paths site.Paths
	flags := flag.NewFlagSet("task-prolog", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&paths.Root, "root", "", "")
	if flags.Parse(p.Args) != nil {
		return cli.OK
	}
	env := slurm.NewEnviron(p.Env)
	pid, _ := strconv.Atoi(env["SLURM_TASK_PID"]) // slurmstepd runs this for that task
	task, err := slurm.ReadTask(env, pid)
	if err != nil || task.StepID == "" {
		return cli.OK
	}
	seat, err := take(paths, task)
	if err != nil || seat.Check() != nil {
		return cli.OK
	}
	for _, v := range seat.Variables() {
		if v.Value == "" {
			fmt.Fprintf(p.Out, "unset %s\n", v.Name)
		} else {
			fmt.Fprintf(p.Out, "export %s=%s\n", v.Name, v.Value)
		}
	}
	return cli.OK
}
