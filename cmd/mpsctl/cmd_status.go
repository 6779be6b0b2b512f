// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl status: the jobs of this node, their GPUs, daemons and clients, and the differences between the
// node and the leases.

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/spf13/cobra"
)

const statusHelp = `status prints the jobs that have MPS on this node: user, rule, begin, daemons and servers. For each GPU of a job it prints
the clients by rank, with their shares in SMs and the memory that they use. Then it prints every GPU with its compute mode
and the job that holds it. It asks each daemon for 2 s at most, and changes nothing.

"in use" is the latest sample of the job's report, as mpsctl report explains it. The bar is the part of the SMs that had
work. A client's rank and step are from its environment.

If the node differs from a lease, the line is marked with !, and a finding below names the difference, its place and its
repair. A finding was seen twice. A lease without a step is one only if PrologFlags has Contain, in the slurm.conf that
doctor reads.

A client's percentage and memory are those that its environment had when it started. Its SMs follow from these and from
the percentage of its server. If you are not root, you see only your own jobs, and a list of what you cannot see.

It exits with 0 if lease and node agree, with 1 if they do not or root could not see everything, and with 2 for a wrong flag.`

func statusCommand(call *command.Invocation) *cobra.Command {
	var silent bool
	c := &cobra.Command{
		Use: "status", Short: "print this node's jobs, GPUs, daemons and clients", Long: statusHelp,
		Example: "  mpsctl status\n  watch -n2 mpsctl status\n" +
			"  mpsctl status --json | jq '.jobs[].gpus[].clients[] | {pid, sms}'\n  mpsctl status --no-queries",
		Args: command.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			n, found, err := look(call, "status", !silent, noLimit, state.Disagreements)
			if err != nil {
				return err
			}
			return printStatus(call, n, found)
		},
	}
	c.Flags().BoolVar(&silent, "no-queries", false, "ask no daemon: the driver lists the clients")
	return c
}

// noLimit is longer than any command runs. The questions of a look have their own limits.
const noLimit = 24 * time.Hour

// look reads the node for a command that prints it, in the time that it has. An interrupted command prints nothing.
func look(
	call *command.Invocation, name string, ask bool, limit time.Duration, reported func([]state.Finding) []state.Finding,
) (state.Node, []state.Finding, error) {
	reader, err := state.Open(call.Paths, state.SlurmConf(call.Variable("SLURM_CONF")), ask)
	if err != nil {
		return state.Node{}, nil, cli.RuntimeError{Err: err}
	}
	ctx, stop := command.SignalContext()
	defer stop()
	looking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	n, found := reader.Inspect(looking, reported)
	if ctx.Err() != nil {
		return n, nil, cli.RuntimeError{Err: fmt.Errorf("cannot print %s: interrupted", name)}
	}
	return n, found, nil
}

type statusReport struct {
	state.Node
	Findings []state.Finding `json:"findings"`
}

func printStatus(call *command.Invocation, n state.Node, found []state.Finding) error {
	text := func(s command.Screen) string { return statusText(n, found, s) }
	return call.PrintFindings("status", statusReport{n, found}, text, len(found) > 0 || n.Root && len(n.Incomplete) > 0)
}
