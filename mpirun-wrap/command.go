// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
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
	for _, s := range Settings {
		form := "--" + s.Flag
		if s.Value != "" {
			form += " " + s.Value
		}
		text := cli.Wrap(strings.Repeat(" ", flagColumns), s.Usage, cli.HelpColumns)
		fmt.Fprintf(out, "%-*s%s", flagColumns, "  "+form, text[flagColumns:])
	}
	fmt.Fprint(out, wrapUsageEnd)
}

// errSetID refuses an mpirun-wrap with the set-user-id or set-group-id bit, because it would run any program as the
// file's owner.
var errSetID = errors.New("cannot run a program for another user: this file has the set-user-id or set-group-id bit: ask your admin to remove it (chmod ug-s)")

// MPS starts and asks MPS daemons for a rank (package own).
type MPS interface {
	// ServerStatus asks the rank's daemon for the state of a server. The error wraps fs.ErrNotExist or fs.ErrPermission
	// if this process cannot ask.
	ServerStatus(ctx context.Context, ticket lease.Ticket, daemon lease.Daemon, server int) (state string, err error)
	// Join starts an MPS daemon for a rank without a prolog and for the other ranks of its step, or finds theirs. It
	// returns the daemon's ticket. root is put before the node's paths.
	Join(ctx context.Context, root string, environ []string, task launch.Task, binding launch.Binding) (lease.Ticket, *lease.Store, error)
	// Stay is called before the rank becomes its program, which has this path. It passes what the user must know to warn,
	// with the name of the thing.
	Stay(program string, warn func(thing string, err error)) error
}

// Wrap is the program mpirun-wrap. It returns if the program cannot be run, or if there is none to run.
func Wrap(p cli.Process, daemon MPS) int {
	if os.Geteuid() != os.Getuid() || os.Getegid() != os.Getgid() {
		p.PrintError("mpirun-wrap", errSetID)
		return cli.ExitWrapperFailed
	}
	run := newRun(p.PID, p.Env, p.Out, p.Err)
	run.MPS = daemon
	run.giveUp = func(err error) {
		run.complain(err)
		os.Exit(cli.ExitWrapperFailed)
	}
	version, err := parse(p.Args, run)
	switch {
	case errors.Is(err, cli.ErrHelp):
		usage(p.Out)
		return cli.ExitOK
	case err == nil && version:
		fmt.Fprintln(p.Out, cli.Version())
		return cli.ExitOK
	case err == nil:
		err = become(run)
	}
	if err == nil {
		return cli.ExitOK
	}
	run.complain(err)
	if program, ok := errors.AsType[*execError](err); ok {
		return program.Code
	}
	return cli.ExitWrapperFailed
}

// parse reads the variables and then the flags. A flag replaces the value of its variable.
func parse(args []string, run *run) (version bool, err error) {
	if run.Options, err = ReadOptions(run.Env); err != nil {
		return false, err
	}
	if version, err = parseFlags(args, run, Settings); err != nil {
		return version, err
	}
	return version, run.Options.check()
}

// become prepares the rank and becomes its program. After a dry run it returns.
func become(run *run) error {
	if len(run.Program) == 0 && !run.Options.DryRun {
		return errors.New("cannot run a program: none is given: see mpirun-wrap --help")
	}
	environ, err := run.prepare()
	if err != nil || run.Options.DryRun {
		return err
	}
	path, err := lookPath(run.Program[0], environ)
	if err != nil {
		return err
	}
	if err := run.MPS.Stay(path, run.messages().once); err != nil {
		return err
	}
	// Go raises the soft limit of open files when a process starts. This Exec restores the limit for the program.
	return notRun(path, syscall.Exec(path, run.Program, environ))
}

// parseFlags reads the flags of a command line into a run, up to the first argument that is not a flag, or up to "--".
// The rest is the run's program.
func parseFlags(args []string, run *run, settings []Setting) (version bool, err error) {
	flags := []cli.Flag{{Name: "root", To: &run.Paths.Root}, {Name: "version", To: &version}}
	for _, s := range settings {
		set := func(value string) error { return run.Options.Set(s.Flag, value) }
		flags = append(flags, cli.Flag{Name: s.Flag, To: set, Bare: s.Value == ""})
		if s.Flag == "verbose" {
			flags = append(flags, cli.Flag{Name: "v", To: set, Bare: true})
		}
	}
	run.Program, err = cli.ParseFlags("mpirun-wrap", args, flags)
	return version, err
}
