// SPDX-License-Identifier: Apache-2.0

// Package wrap contains the two programs that run as the user, once for every rank. Both are static and link no C, no
// NVML, no HCL and no cobra, because they also run in containers, and thousands of them may start at the same time.
package wrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/tuned"
)

const wrapUsage = `mpirun-wrap runs one rank of a job under NVIDIA MPS, on its own GPU and with its
own share of it.

Usage:
  srun mpirun-wrap [flags] [--] PROGRAM [ARG...]
  mpirun mpirun-wrap [flags] [--] PROGRAM [ARG...]

Examples:
  srun mpirun-wrap ./app input.dat
  srun mpirun-wrap --report --mem=8G ./app
  srun mpirun-wrap --dry-run

Give flags before the program. All arguments after it are the program's.

Flags:
`

const wrapUsageEnd = `  --root DIR          look for the job's ticket below DIR
  --version, --help

Each flag except the last three has a variable: the variable of --local-rank
is SLURM_MPS_LOCAL_RANK. A flag overrides its variable, and a variable
overrides the site's policy. SLURM_MPS=off runs the program without MPS. It is
refused if the GPUs are in EXCLUSIVE_PROCESS mode, which is the default.

mpirun-wrap becomes the program, so the exit code is the program's. It exits
with 125 if it cannot place the rank, with 126 if the program cannot be
executed, and with 127 if the program is not found.
`

// flagColumns is the number of columns before the description of a flag.
const flagColumns = 22

// usage prints the help, with an entry for each setting.
func usage(out io.Writer) {
	fmt.Fprint(out, wrapUsage)
	for _, s := range mpirunwrap.Settings() {
		form := "--" + s.Flag
		if s.Value != "" {
			form += " " + s.Value
		}
		what := cli.Wrap(strings.Repeat(" ", flagColumns), s.Usage, cli.HelpColumns)
		fmt.Fprintf(out, "%-*s%s", flagColumns, "  "+form, what[flagColumns:])
	}
	fmt.Fprint(out, wrapUsageEnd)
}

// parse reads the variables and then the flags. A flag replaces the value of its variable.
func parse(args []string, env slurm.Env) (l line, err error) {
	if l.options, err = mpirunwrap.ReadOptions(env); err != nil {
		return l, err
	}
	if err = l.parse(args, slices.Concat(mpirunwrap.Settings(), own)); err != nil {
		return l, err
	}
	return l, l.options.Check()
}

// errSetID refuses an mpirun-wrap with the set-user-id or set-group-id bit, because it would run any program as the
// file's owner.
var errSetID = errors.New("cannot run a program for another user: this file has the set-user-id or set-group-id bit: ask your admin to remove it (chmod ug-s)")

// Wrap is the program mpirun-wrap. It returns if the program cannot be run, or if there is none to run.
func Wrap(p cli.Process) int {
	if os.Geteuid() != os.Getuid() || os.Getegid() != os.Getgid() {
		p.PrintError("mpirun-wrap", errSetID)
		return cli.ExitWrapperFailed
	}
	env := slurm.NewEnv(p.Env)
	l, err := parse(p.Args, env)
	if value, set := env[toldVariable]; set {
		delete(env, toldVariable)
		p.Env = without(p.Env, toldVariable)
		if !site.IsTerminal(p.Err) { // on a terminal the reason may have left the screen
			l.told = value
		}
	}
	switch {
	case errors.Is(err, errHelp):
		usage(p.Out)
		return cli.ExitOK
	case err == nil && l.version:
		fmt.Fprintln(p.Out, cli.Version())
		return cli.ExitOK
	case err == nil && len(l.program) == 0 && !l.options.DryRun:
		err = errors.New("cannot run a program: none is given: see mpirun-wrap --help")
	}
	if err == nil {
		err = run(p, env, l)
	}
	if err == nil {
		return cli.ExitOK
	}
	complain(p, env, l, err)
	var program *mpirunwrap.ProgramError
	if errors.As(err, &program) {
		return program.Code
	}
	return cli.ExitWrapperFailed
}

// complain prints why a rank cannot run. All ranks of its launch on this node with the same reason print it once.
// Each rank with --local-rank prints it, because the program that started it may read each rank's output. No rank prints
// what its task prolog has printed.
func complain(p cli.Process, env slurm.Env, l line, err error) {
	task, unknown := readTask(env, p.PID, l.options)
	reason := reasonOf(err, task)
	if told(l.told, env, reason) {
		return
	}
	launch, noLaunch := launchOf(env, p.PID, task)
	if noLaunch != nil || l.options.LocalSize > 0 || unknown == nil && task.LocalSize == 1 {
		p.PrintError("mpirun-wrap", err)
		return
	}
	mpirunwrap.PrintOnce(strings.Join([]string{env["SLURM_JOB_ID"], launch, reason}, " "), func() {
		p.PrintError("mpirun-wrap", fmt.Errorf("%w (printed once for this node)", err))
	})
}

// run places the rank, waits until MPS is ready and becomes the program. If MPS is switched off, the program runs
// without MPS. It also does so if the site lets the job run without MPS, and then one rank of the node reports that.
func run(p cli.Process, env slurm.Env, l line) error {
	if l.options.Off && !l.options.DryRun {
		return runOff(p, env, l)
	}
	rank, err := readRank(l.paths, env, p.PID, l.options)
	if err != nil {
		return err
	}
	if mpirunwrap.NeedsExchange(env, rank.Task, l.options) {
		if rank.Exchange, err = needsExchange(env, p.PID, rank.Task); err != nil {
			return err
		}
	}
	if l.options.Tuned != "" {
		rank.Tuned = tunedShare(l, env)
	}
	placement, err := take(l.paths, rank, slotWaits(p, env))
	var refused *mpirunwrap.RefusedError
	if errors.As(err, &refused) && refused.Without && !l.options.DryRun {
		if rank.Task.LocalRank == 0 {
			p.PrintError("mpirun-wrap", fmt.Errorf("running without MPS, as this site's policy allows: %w", err))
		}
		return mpirunwrap.Exec(l.program, p.Env)
	}
	if err != nil {
		return err
	}
	if slurm.WithoutGPU(env, rank.Task) {
		return runWithoutGPU(p, l)
	}
	h := announcer{p, env, placement}
	h.remark(l.options)
	if l.options.DryRun {
		return placement.Print(p.Out, l.options.JSON)
	}
	if err := h.ready(); err != nil {
		return h.unavailable(l.program, err)
	}
	h.waitRoom(l.paths)
	h.warnOfNeighbour()
	if l.options.Report {
		if err := placement.Report(p.Err, l.options.JSON); err != nil {
			return err
		}
	}
	return mpirunwrap.Exec(l.program, placement.Environment(p.Env))
}

// errOff refuses SLURM_MPS=off for a job with GPUs that accept only MPS.
var errOff = errors.New("SLURM_MPS=off: the GPUs of this job are in EXCLUSIVE_PROCESS mode, so a program without MPS fails with CUDA error 46: submit the job without --constraint=mps, or leave out SLURM_MPS=off")

// runOff runs the program without MPS.
func runOff(p cli.Process, env slurm.Env, l line) error {
	task, err := readTask(env, p.PID, l.options)
	if err != nil {
		return mpirunwrap.Exec(l.program, p.Env)
	}
	ticket, err := findTicket(l.paths, task)
	if err == nil && ticket.Exclusive {
		return errOff
	}
	return mpirunwrap.Exec(l.program, mpirunwrap.WithoutMPS(p.Env))
}

// runWithoutGPU runs the program of a step without a GPU. CUDA shows the program no GPU, so it cannot run outside of
// MPS.
func runWithoutGPU(p cli.Process, l line) error {
	if l.options.DryRun || l.options.Report {
		p.PrintError("mpirun-wrap", errors.New("running without a GPU and MPS: this step has none (srun --gres=none)"))
	}
	if l.options.DryRun {
		return nil
	}
	return mpirunwrap.Exec(l.program, mpirunwrap.WithoutGPU(p.Env))
}

// readRank reads the description of this rank from the environment and the machine.
func readRank(paths site.Paths, env slurm.Env, pid int, options mpirunwrap.Options) (rank mpirunwrap.Rank, err error) {
	rank.Options = options
	rank.Host = mpirunwrap.HostInfo{NUMA: -1, CanOpen: func(minor int) bool {
		return site.CanOpen(filepath.Join(paths.Devices(), "nvidia"+strconv.Itoa(minor)))
	}}
	if options.GPU == mpirunwrap.Nearest {
		rank.Host.NUMA = site.CurrentNUMANode("/sys/devices/system/node")
	}
	if rank.Binding, err = slurm.ReadBinding(env); err != nil {
		return rank, err
	}
	if options.Slots == mpirunwrap.JobTasks {
		if rank.Options.Slots, err = jobTasks(env); err != nil {
			return rank, err
		}
	}
	rank.Task, err = readTask(env, pid, options)
	return rank, err
}

// jobTasks returns the number of slots if the user gives no number: the job's tasks on this node. It refuses 1,
// because one slot would run the processes one after the other.
func jobTasks(env slurm.Env) (int, error) {
	n, err := slurm.TasksOnNode(env)
	if err == nil && n == 1 {
		err = errors.New("cannot count slots: the job or step has one task on this node")
	}
	if err != nil {
		return 0, fmt.Errorf("%w: give the number: --slots=8", err)
	}
	return n, nil
}

func readTask(env slurm.Env, pid int, options mpirunwrap.Options) (slurm.Task, error) {
	if options.LocalSize > 0 {
		return slurm.ManualTask(env, options.LocalRank, options.LocalSize)
	}
	if first, _ := strconv.Atoi(env["SLURM_TASK_PID"]); first > 0 && first != pid {
		env = slurm.WithoutInheritedLauncher(env, proc.Variables(context.Background(), site.Process{PID: first}, slurm.LauncherVariables()...).Values)
	}
	task, err := slurm.ReadTask(env, pid)
	if err != nil && options.Slots != 0 { // the slot is the place
		return slurm.ManualTask(env, 0, 1)
	}
	if err != nil {
		return task, fmt.Errorf("%w; or give --local-rank and --local-size", err)
	}
	return task, nil
}

// exchangeTimeout is how long a rank waits for the other ranks of its launch. A launcher starts all ranks of a node
// within a second, and a busy node may need longer.
const exchangeTimeout = 15 * time.Second

// launchOf names the launch of a rank. All ranks of a launch on a node have the same parent, which has started them.
func launchOf(env slurm.Env, pid int, task slurm.Task) (string, error) {
	self, err := site.ReadStat(pid)
	if err != nil {
		return "", err
	}
	if self.Parent == 0 { // the parent is outside of this pid namespace
		return mpirunwrap.LaunchID(env, task, site.Process{}), nil
	}
	parent, err := site.ReadStat(self.Parent)
	if err != nil {
		return "", err
	}
	return mpirunwrap.LaunchID(env, task, parent.Process), nil
}

// needsExchange returns the function by which this rank exchanges its information with the other ranks of its launch.
func needsExchange(env slurm.Env, pid int, task slurm.Task) (func(string, mpirunwrap.RankInfo) ([]mpirunwrap.RankInfo, error), error) {
	launch, err := launchOf(env, pid, task)
	if err != nil {
		return nil, err
	}
	return func(folder string, own mpirunwrap.RankInfo) ([]mpirunwrap.RankInfo, error) {
		ctx, cancel := context.WithTimeout(context.Background(), exchangeTimeout)
		defer cancel()
		return mpirunwrap.ExchangeRankInfo(ctx, folder, launch, task.LocalSize, own)
	}, nil
}

// tunedShare returns the function that finds the share that mps-tune saved for this program, or for the given name.
func tunedShare(l line, env slurm.Env) func(lease.Ticket, slurm.Task) (policy.ShareRule, string, error) {
	return func(ticket lease.Ticket, task slurm.Task) (policy.ShareRule, string, error) {
		name := l.options.Tuned
		if name == mpirunwrap.Program {
			if len(l.program) == 0 {
				return policy.ShareRule{}, "", errors.New("cannot find a tuned share: no program is given: give it, or --share=tuned:NAME")
			}
			name = l.program[0]
		}
		key := tuned.NewKey(name, task.LocalSize, len(ticket.Devices), ticket.Devices[0].Name)
		return tuned.Find(tuned.UserFile(env["XDG_CONFIG_HOME"], env["HOME"]), l.paths.Tuned(), key)
	}
}

func findTicket(paths site.Paths, task slurm.Task) (lease.Ticket, error) {
	boot, err := site.BootID()
	if err != nil {
		return lease.Ticket{}, err
	}
	return mpirunwrap.FindTicket(lease.OpenReadOnly(paths.Run(), boot), task)
}

// take places the rank by its job's ticket. waits is called once if the rank must wait for a slot.
func take(paths site.Paths, rank mpirunwrap.Rank, waits func(mpirunwrap.Rank, lease.Ticket)) (mpirunwrap.Placement, error) {
	ticket, err := findTicket(paths, rank.Task)
	if err != nil {
		return mpirunwrap.Placement{}, err
	}
	if rank.Options.Slots > 0 && ticket.RefusalReason == "" {
		if rank, err = mpirunwrap.TakeSlot(context.Background(), ticket, rank, func() { waits(rank, ticket) }); err != nil {
			return mpirunwrap.Placement{}, err
		}
	}
	return mpirunwrap.Place(ticket, rank)
}

// slotWaits returns the function that prints that processes wait for slots: once for all processes with the same
// parent.
func slotWaits(p cli.Process, env slurm.Env) func(mpirunwrap.Rank, lease.Ticket) {
	return func(rank mpirunwrap.Rank, ticket lease.Ticket) {
		launch, err := launchOf(env, p.PID, rank.Task)
		if err == nil && mpirunwrap.OncePerNode(ticket.ExchangeDir, launch, "slots", 0) {
			p.PrintError("mpirun-wrap", fmt.Errorf("waiting for a slot: all %d are taken (--slots-wait=0 does not wait)", rank.Options.Slots))
		}
	}
}
