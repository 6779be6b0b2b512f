// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl reap: it closes the leftovers of ended jobs, if they provably belong to such a job.

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/prolog/frame"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/spf13/cobra"
)

const reapHelp = `reap closes the leftovers of jobs that are gone, as their epilog would have:
  a lease whose prolog or epilog has died before its end
  a lease of another boot (files only), and files without a lease
  a daemon of ours that no lease names
  with --job, also the open lease of a job of which you know that it is gone (squeue -j ID)
An open lease without a process may be an allocation in which no step runs yet, so it is left and reported. It also
leaves what runs, jobs that a prolog or an epilog works on, records that cannot be read, and what is not provably ours. It never
touches a job with a Slurm step on this node.

It exits with 0 if nothing is left to do, with 1 if something failed or you must decide, and with 2 for a wrong flag.
Only root can run it.`

func reapCommand(call *command.Invocation) *cobra.Command {
	var job uint32
	var dry bool
	c := &cobra.Command{
		Use: "reap [--job ID] [--dry-run]", Short: "close what ended jobs have left", Long: reapHelp,
		Example: "  mpsctl reap --dry-run\n  mpsctl reap\n  mpsctl reap --job 4711",
		Args:    command.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("job") && job == 0 {
				return errors.New("cannot reap job 0: give the number of a job: see mpsctl reap --help")
			}
			return runReap(call, job, dry)
		},
	}
	c.Flags().Uint32Var(&job, "job", 0, "reap only job `ID`, which you know is gone")
	c.Flags().BoolVar(&dry, "dry-run", false, "print what would be done, and do nothing")
	return c
}

func runReap(call *command.Invocation, job uint32, dry bool) error {
	if os.Geteuid() != 0 {
		return cli.RuntimeError{Err: errors.New("cannot reap: not root")}
	}
	ctx, stop := command.SignalContext()
	defer stop()
	r, err := state.NewReaper(call.Paths, job)
	if err != nil {
		return cli.RuntimeError{Err: err}
	}
	if !dry {
		cleanup, err := frame.OpenCleanup(call.Paths)
		if err != nil {
			return cli.RuntimeError{Err: err}
		}
		defer cleanup.Close()
		r.Executor = cleanup
	}
	results, err := r.Run(ctx)
	if err != nil {
		return cli.RuntimeError{Err: err}
	}
	report := reapReport{dry, results}
	undone := func(r state.Result) bool { return r.Failed != "" || r.Action == state.Leave }
	return call.PrintFindings("reaping", report, report.text, slices.ContainsFunc(results, undone))
}

type reapReport struct {
	DryRun  bool           `json:"dry_run"`
	Results []state.Result `json:"results"`
}

// text is the report for people. The report of a dry run differs in its first line only.
func (r reapReport) text(screen command.Screen) string {
	var b strings.Builder
	if r.DryRun {
		b.WriteString("dry run: nothing is done\n")
	}
	for _, result := range r.Results {
		fmt.Fprintf(&b, "%s  %s  %s\n", screen.Bold(result.Where), result.Action, result.Reason)
		if result.Failed != "" {
			fmt.Fprintf(&b, "    %s %s\n", screen.Red("failed:"), result.Failed)
		}
		if result.Fix != "" {
			b.WriteString(fixText(result.Fix))
		}
	}
	if len(r.Results) == 0 {
		b.WriteString("nothing to reap\n")
	}
	return b.String()
}
