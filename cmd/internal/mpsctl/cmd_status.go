// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl status: the jobs of this node, their GPUs, daemons and clients, and the differences between the
// node and the leases.

package mpsctl

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/spf13/cobra"
)

const statusHelp = `status prints the jobs that have MPS on this node: user, rule, begin, daemons and servers. For each GPU of a job it prints
the clients by rank, with their shares in SMs and the memory that they use. Then it prints every GPU with its compute mode
and the job that holds it. It asks each daemon for 2 s at most, and changes nothing.

"in use" is the latest sample of the job's report, as mpsctl report explains it. The bar is the part of the SMs that had
work. A client's rank and step are from its environment.

If the node differs from a lease, the line is marked with !, and a finding below names the difference, its place and its
repair. A finding was seen twice.

A client's percentage and memory are those that its environment had when it started. Its SMs follow from these and from
the percentage of its server. If you are not root, you see only your own jobs, and a list of what you cannot see.

It exits with 0 if lease and node agree, with 1 if they do not or root could not see everything, and with 2 for a wrong flag.`

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
	c.Flags().BoolVar(&watch, "watch", false, "look again every 2 s, until q or Ctrl-C; arrows or j and k scroll; with --json an object a line")
	c.Flags().BoolVar(&silent, "no-queries", false, "ask no daemon: the driver lists the clients")
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

// repeat reads the node again and again, until ctx ends. A terminal shows only the latest result, and can scroll. A
// pipe gets all results.
func repeat(ctx context.Context, call *Invocation, reader viewer, pause time.Duration) error {
	if !call.JSON && call.Screen().Terminal {
		pressed, restore := readKeys(ctx, os.Stdin)
		defer restore()
		return scroll(ctx, call, reader, pause, pressed)
	}
	for first := true; ; first = false {
		n, found := reader.Inspect(ctx, inspect.Disagreements)
		if ctx.Err() != nil {
			return nil
		}
		if !call.JSON && !first {
			if _, err := io.WriteString(call.Out, "\n"); err != nil {
				return WriteError("status", err)
			}
		}
		if err := write(call, n, found, call.Screen()); err != nil {
			return err
		}
		if !site.Sleep(ctx, pause) {
			return nil
		}
	}
}

// scroll shows results on a terminal. It obeys keys at the same time, because reading the node may take seconds.
func scroll(ctx context.Context, call *Invocation, reader viewer, pause time.Duration, pressed <-chan key) error {
	texts := make(chan func(Screen) string)
	go func() {
		defer close(texts)
		for {
			n, found := reader.Inspect(ctx, inspect.Disagreements)
			if ctx.Err() != nil {
				return
			}
			select {
			case texts <- func(s Screen) string { return statusText(n, found, s) }:
			case <-ctx.Done():
				return
			}
			if !site.Sleep(ctx, pause) {
				return
			}
		}
	}()
	from, text := 0, func(Screen) string { return "" }
	for {
		screen := call.Screen() // a window may have changed its size
		select {
		case <-ctx.Done():
			return nil
		case next, ok := <-texts:
			if !ok {
				return nil
			}
			text = next
		case k := <-pressed:
			if k == keyQuit {
				return nil
			}
			from = scrolled(from, k, strings.Count(text(screen), "\n"), screen.Rows)
		}
		if _, err := io.WriteString(call.Out, screen.Redraw(text(screen), from)); err != nil {
			return WriteError("status", err)
		}
	}
}

// statusReport is the JSON of the command.
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
