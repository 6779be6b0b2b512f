// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl status: the jobs of this node, their GPUs, daemons and clients, and where the node differs from
// what the leases say.

package mpsctl

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/spf13/cobra"
)

const statusHelp = `status prints the jobs that have MPS on this node: user, rule, since when, their daemons and servers, and on each GPU the
clients with their shares, in SMs and as a bar of the GPU; then every GPU with its compute mode and who holds it. It asks
the daemons, each for 2 s at most, and changes nothing.

Where the node differs from what a lease says, the line is marked with ! and a finding below says what, where and what
to do. A finding was seen twice.

A client's percentage and memory are what its environment had when it started; its SMs follow from that and from what its
server says. Who is not root sees their own jobs, and what else could not be seen.

It exits with 0 where lease and node agree, with 1 where they do not or root could not see all, and 2 for a wrong flag.`

// statusCommand is mpsctl status.
func statusCommand(call *Invocation) *cobra.Command {
	var watch, silent bool
	var nodes string
	c := &cobra.Command{
		Use: "status", Short: "print this node's jobs, GPUs, daemons and clients", Long: statusHelp,
		Example:               "  mpsctl status\n  mpsctl status --watch\n  mpsctl status --json | jq '.jobs[].gpus[].clients[] | {pid, sms}'\n  mpsctl status --no-queries\n  mpsctl status -w 'gpu[01-16]'",
		DisableFlagsInUseLine: true, Args: NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			asked := c.Flags().Changed("nodes")
			switch {
			case asked && watch:
				return errors.New("cannot watch nodes: give --nodes or --watch, not both")
			case asked && silent:
				return askNodes(call, nodes, "status", "--no-queries")
			case asked:
				return askNodes(call, nodes, "status")
			}
			reader, err := inspect.Open(call.Paths, !silent)
			if err != nil {
				return cli.RuntimeError{Err: err}
			}
			ctx, stop := SignalContext()
			defer stop()
			if watch {
				return repeat(ctx, call, reader, interval)
			}
			return once(ctx, call, reader)
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "look again every 2 s, until Ctrl-C; with --json an object a line")
	c.Flags().BoolVar(&silent, "no-queries", false, "ask no daemon: the driver says who the clients are")
	nodesFlag(c, &nodes)
	return c
}

// viewer is a reader of a node.
type viewer interface {
	Inspect(context.Context, func([]inspect.Finding) []inspect.Finding) (inspect.Node, []inspect.Finding)
}

var errInterrupted = errors.New("cannot print status: interrupted")

func once(ctx context.Context, call *Invocation, reader viewer) error {
	n, found := reader.Inspect(ctx, inspect.Disagreements)
	if ctx.Err() != nil {
		return cli.RuntimeError{Err: errInterrupted}
	}
	if err := write(call, n, found, call.Screen()); err != nil {
		return err
	}
	if len(found) > 0 || n.Root && len(n.Incomplete) > 0 {
		return cli.ErrFindings
	}
	return nil
}

const interval = 2 * time.Second

// repeat looks until it is told to stop. A terminal shows the latest look alone; a pipe gets them all.
func repeat(ctx context.Context, call *Invocation, reader viewer, pause time.Duration) error {
	for first := true; ; first = false {
		n, found := reader.Inspect(ctx, inspect.Disagreements)
		if ctx.Err() != nil {
			return nil
		}
		if err := frame(call, n, found, first); err != nil {
			return err
		}
		if !site.Sleep(ctx, pause) {
			return nil
		}
	}
}

func frame(call *Invocation, n inspect.Node, found []inspect.Finding, first bool) error {
	screen := call.Screen() // a window may have changed its size
	if call.JSON || !screen.Terminal {
		if !call.JSON && !first {
			if _, err := io.WriteString(call.Out, "\n"); err != nil {
				return WriteError("status", err)
			}
		}
		return write(call, n, found, screen)
	}
	_, err := io.WriteString(call.Out, screen.Redraw(statusText(n, found, screen)))
	return WriteError("status", err)
}

// statusReport is the JSON.
type statusReport struct {
	inspect.Node
	Findings []inspect.Finding `json:"findings"`
}

func write(call *Invocation, n inspect.Node, found []inspect.Finding, screen Screen) error {
	if call.JSON {
		return WriteError("status", cli.WriteJSON(call.Out, statusReport{n, found}))
	}
	_, err := io.WriteString(call.Out, statusText(n, found, screen))
	return WriteError("status", err)
}
