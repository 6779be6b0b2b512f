// Package rank is what the doors that run as the user, once for every rank, share. Both are static and link no C, no
// NVML, no HCL and no cobra: they run in containers too, thousands at a time.
package rank

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

const wrapUsage = `mpirun-wrap runs one rank of a job under NVIDIA MPS, on its own GPU and with its own share of it.

  srun mpirun-wrap [flags] [--] PROGRAM [ARG...]
  mpirun mpirun-wrap [flags] [--] PROGRAM [ARG...]

Flags stand before the program; all that follows is the program's. A flag counts before its variable, a variable before
the site's policy.
`

const wrapUsageEnd = `  --root DIR          look for the job's ticket below DIR
  --version, --help

SLURM_MPS=off runs the program as it is, without MPS.

It exits with the program's own code; 125 where it cannot seat the rank, 126 where the program cannot be executed, 127
where it is not found.
`

// usage is the help, with a line for each setting.
func usage(out io.Writer) {
	fmt.Fprint(out, wrapUsage)
	for _, s := range mpirunwrap.Settings() {
		form := "--" + s.Flag
		if s.Value != "" {
			form += " " + s.Value
		}
		fmt.Fprintf(out, "  %-19s %s (%s)\n", form, s.Usage, s.Variable())
	}
	fmt.Fprint(out, wrapUsageEnd)
}

// line is mpirun-wrap's own command line, taken apart.
type line struct {
	paths   site.Paths
	options mpirunwrap.Options
	version bool
	program []string
}

// parse reads the flags over the variables.
func parse(p cli.Process) (l line, err error) {
	if l.options, err = mpirunwrap.ReadOptions(slurm.NewEnviron(p.Env)); err != nil {
		return l, err
	}
	flags := flag.NewFlagSet("mpirun-wrap", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&l.paths.Root, "root", "", "")
	flags.BoolVar(&l.version, "version", false, "")
	var refused error // the option's own sentence, without the flag package's around it
	set := func(flag, value string) error {
		refused = l.options.Set(flag, value)
		return refused
	}
	flags.BoolFunc("v", "", func(value string) error { return set("verbose", value) })
	for _, s := range mpirunwrap.Settings() {
		set := func(value string) error { return set(s.Flag, value) }
		if s.Value == "" {
			flags.BoolFunc(s.Flag, "", set)
		} else {
			flags.Func(s.Flag, "", set)
		}
	}
	if err := flags.Parse(p.Args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return l, err
		}
		if refused != nil {
			return l, refused
		}
		return l, fmt.Errorf("cannot read flags: %w: see mpirun-wrap --help", err)
	}
	l.program = flags.Args()
	return l, l.options.Check()
}

// Wrap is the door of mpirun-wrap. It returns the program's code where it guarded one.
func Wrap(p cli.Process) int {
	l, err := parse(p)
	switch {
	case errors.Is(err, flag.ErrHelp):
		usage(p.Out)
		return cli.OK
	case err == nil && l.version:
		fmt.Fprintln(p.Out, cli.Version())
		return cli.OK
	case err == nil && len(l.program) == 0 && !l.options.DryRun:
		err = errors.New("cannot run a program: none is given: see mpirun-wrap --help")
	}
	if err == nil {
		err = run(p, l)
	}
	if err == nil {
		return cli.OK
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	p.Complain("mpirun-wrap", err)
	var program *mpirunwrap.ProgramError
	if errors.As(err, &program) {
		return program.Code
	}
	return cli.WrapperFailed
}

// run seats the rank, waits until MPS is ready and guards the program, or becomes it. Where MPS is switched off, or the
// site lets the job run without it, the program runs as it is; in the second case one rank of the node says so.
func run(p cli.Process, l line) error {
	if l.options.Off {
		return mpirunwrap.Exec(l.program, p.Env)
	}
	env := slurm.NewEnviron(p.Env)
	rank, err := readRank(l.paths, env, p.PID, l.options)
	if err != nil {
		return err
	}
	if mpirunwrap.MustMeet(env, rank.Task, l.options) {
		if rank.Agree, err = meeting(env, p.PID, rank.Task); err != nil {
			return err
		}
	}
	seat, err := take(l.paths, rank)
	var refused *mpirunwrap.RefusedError
	if errors.As(err, &refused) && refused.Without && !l.options.DryRun {
		if rank.Task.LocalRank == 0 {
			p.Complain("mpirun-wrap", fmt.Errorf("running without MPS, as this site's policy says: %w", err))
		}
		return mpirunwrap.Exec(l.program, p.Env)
	}
	if err != nil {
		return err
	}
	if l.options.DryRun {
		return seat.Print(p.Out, l.options.JSON)
	}
	h := herald{p, env, seat}
	if err := h.ready(l.options); err != nil {
		return h.instead(l.program, err)
	}
	if l.options.Report || l.options.Verbose {
		if err := seat.Report(p.Err, l.options.JSON); err != nil {
			return err
		}
	}
	if seat.Pass {
		return mpirunwrap.Exec(l.program, seat.Environment(p.Env))
	}
	code, err := mpirunwrap.Guard(l.program, seat.Environment(p.Env), mpirunwrap.GuardOptions{
		Peers: seat.Ticket.Meet, Rank: rank.Task.LocalRank, Size: rank.Task.LocalSize,
		Device:    filepath.Join(l.paths.Devices(), "nvidia-uvm"),
		Terminate: control{seat}.terminate, Broadcast: launched(rank.Task), Verify: h.verification(l.options), Err: p.Err, Verbose: l.options.Verbose,
	})
	if err != nil {
		return err
	}
	return exitCode(code)
}

// launched reports whether a launcher started the rank: its signals reach all processes of the rank, not the wrapper
// alone.
func launched(task slurm.Task) bool {
	return task.Source != slurm.SourceAlone && task.Source != slurm.SourceHand
}

// exitCode is the code of a program that ran, which is the wrapper's.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("the program ended with code %d", int(c)) }

// readRank is what the environment and the machine say of this rank.
func readRank(paths site.Paths, env slurm.Environ, pid int, options mpirunwrap.Options) (rank mpirunwrap.Rank, err error) {
	rank.Options = options
	rank.At = mpirunwrap.Whereabouts{NUMA: -1, MayOpen: func(minor int) bool {
		return site.MayOpen(filepath.Join(paths.Devices(), "nvidia"+strconv.Itoa(minor)))
	}}
	if options.GPU == mpirunwrap.Nearest {
		rank.At.NUMA = site.OwnNUMA("/sys/devices/system/node")
	}
	if rank.Binding, err = slurm.ReadBinding(env); err != nil {
		return rank, err
	}
	rank.Task, err = readTask(env, pid, options)
	return rank, err
}

func readTask(env slurm.Environ, pid int, options mpirunwrap.Options) (slurm.Task, error) {
	if options.LocalSize > 0 {
		return slurm.TaskByHand(env, options.LocalRank, options.LocalSize)
	}
	if first, _ := strconv.Atoi(env["SLURM_TASK_PID"]); first > 0 && first != pid {
		env = slurm.Fresh(env, slurm.NewEnviron(site.Environ(first)))
	}
	task, err := slurm.ReadTask(env, pid)
	if err != nil {
		return task, fmt.Errorf("%w; or give --local-rank and --local-size", err)
	}
	return task, nil
}

// meetingPatience is how long a rank waits for the others of its launch: a launcher starts all ranks of a node within a
// second, and this leaves room for a busy one.
const meetingPatience = 15 * time.Second

// launchOf names the launch that a rank is of; the ranks of one on a node have the parent in common that started them.
func launchOf(env slurm.Environ, pid int, task slurm.Task) (string, error) {
	self, err := site.ReadStat(pid)
	if err != nil {
		return "", err
	}
	parent, err := site.ReadStat(self.Parent)
	if err != nil {
		return "", err
	}
	return mpirunwrap.Launch(env, task, parent.Proc), nil
}

// meeting is how this rank agrees with the others of its launch.
func meeting(env slurm.Environ, pid int, task slurm.Task) (func(string, mpirunwrap.Word) ([]mpirunwrap.Word, error), error) {
	launch, err := launchOf(env, pid, task)
	if err != nil {
		return nil, err
	}
	return func(folder string, own mpirunwrap.Word) ([]mpirunwrap.Word, error) {
		ctx, cancel := context.WithTimeout(context.Background(), meetingPatience)
		defer cancel()
		return mpirunwrap.Meet(ctx, folder, launch, task.LocalSize, own)
	}, nil
}

func take(paths site.Paths, rank mpirunwrap.Rank) (mpirunwrap.Seat, error) {
	boot, err := site.BootID()
	if err != nil {
		return mpirunwrap.Seat{}, err
	}
	ticket, err := mpirunwrap.FindTicket(lease.Reader(paths.Run(), boot), rank.Task)
	if err != nil {
		return mpirunwrap.Seat{}, err
	}
	return mpirunwrap.Take(ticket, rank)
}

const taskPrologUsage = `task-prolog runs as slurmd's TaskProlog= and prints the environment of one rank for it: its GPU and its share of it. It
is for ranks that run without mpirun-wrap, and looks at nothing after their start.

  --root DIR          look for the job's ticket below DIR
  --version, --help

It always exits with 0.
`

// TaskProlog is the door of task-prolog: lines for Slurm on stdout, and nothing else anywhere, since Slurm takes stderr
// for lines too and a failure for the task's. The batch script and an mpirun's daemon are no ranks and get no seat. Ranks
// do not meet here: the task prologs of a step need not run at the same time, and have no flags.
func TaskProlog(p cli.Process) int {
	var paths site.Paths
	flags := flag.NewFlagSet("task-prolog", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&paths.Root, "root", "", "")
	version := flags.Bool("version", false, "")
	switch err := flags.Parse(p.Args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(p.Out, taskPrologUsage)
		return cli.OK
	case err != nil:
		return cli.OK
	case *version:
		fmt.Fprintln(p.Out, cli.Version())
		return cli.OK
	}
	env := slurm.NewEnviron(p.Env)
	pid, _ := strconv.Atoi(env["SLURM_TASK_PID"]) // slurmstepd runs this for that task
	options, err := mpirunwrap.ReadOptions(env)
	if err != nil || options.Off {
		return cli.OK
	}
	rank, err := readRank(paths, env, pid, options)
	if err != nil || rank.Task.StepID == "" || slurm.LaunchesRanks(env) {
		return cli.OK
	}
	seat, err := take(paths, rank)
	if err != nil || seat.Check() != nil {
		return cli.OK
	}
	_ = seat.Export(p.Out) // Slurm that does not listen is no reason to fail the task
	return cli.OK
}
