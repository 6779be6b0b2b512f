// SPDX-License-Identifier: Apache-2.0

// Package mpsctl is the program mpsctl: its commands, what all of them take, how they fail and how they print.
package mpsctl

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/spf13/cobra"
)

// Invocation is what a command is given. JSON and Paths are read when it runs, since flags are not before that.
type Invocation struct {
	cli.Process
	JSON  bool
	Paths site.Paths
}

// Constructor makes a command.
type Constructor func(*Invocation) *cobra.Command

// Commands are all commands but tune, which measures as a user inside of a job.
func Commands() []Constructor {
	return []Constructor{statusCommand, auditCommand, planCommand, policyCommand, reapCommand, doctorCommand, metricsCommand, siteCommand}
}

// Run runs mpsctl. It returns 0 if all is well, 1 if something was found or failed, 2 if it was not understood.
func Run(p cli.Process, makers ...Constructor) int {
	call := &Invocation{Process: p}
	root := newRoot(call)
	for _, maker := range makers {
		root.AddCommand(maker(call))
	}
	err := root.Execute()
	var failed cli.RuntimeError
	switch {
	case err == nil:
		return cli.ExitOK
	case errors.Is(err, cli.ErrFindings):
		return cli.ExitFindings
	}
	p.PrintError("mpsctl", err)
	if errors.As(err, &failed) {
		return cli.ExitFindings
	}
	return cli.ExitUsage
}

const rootHelp = `mpsctl looks at a node and at what slurm-mps would do there.

It exits with 0 where all is well, 1 where something was found or failed, and 2 where it was not understood. --json
prints JSON in place of text; text has no colour on a pipe or where NO_COLOR is set.`

func newRoot(call *Invocation) *cobra.Command {
	root := &cobra.Command{
		Use: "mpsctl", Short: "look at a node, and say what slurm-mps would do", Long: rootHelp, Version: cli.Version(),
		Example:       "  mpsctl doctor\n  mpsctl status --watch\n  mpsctl audit --json\n  mpsctl plan --gpu H200 --ranks 8",
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true,
		Args: NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("cannot run: no command is given: see mpsctl --help")
		},
	}
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return checkRoot(call.Paths.Root) }
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Hidden: true, Use: "no-help", RunE: root.RunE})
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("cannot read flags: %w: see %s --help", err, c.CommandPath())
	})
	root.PersistentFlags().BoolVar(&call.JSON, "json", false, "print JSON")
	root.PersistentFlags().StringVar(&call.Paths.Root, "root", "", "move /etc/slurm-mps, /run/slurm-mps and /var/log/slurm-mps below `DIR`")
	root.AddCommand(completion(call))
	root.SetArgs(call.Args)
	root.SetOut(call.Out)
	root.SetErr(call.Err)
	return root
}

// SignalContext is a context that ends with the first SIGINT, SIGTERM or SIGHUP, which end the program again after stop.
func SignalContext() (ctx context.Context, stop context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

func checkRoot(root string) error {
	if root != "" && !filepath.IsAbs(root) {
		return fmt.Errorf("cannot use --root %q: give an absolute path", root)
	}
	return nil
}

// NoArgs is for commands that take flags alone, and for those that take commands.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.HasSubCommands() {
		return fmt.Errorf("cannot run %q: there is no such command: see %s --help", args[0], c.CommandPath())
	}
	return fmt.Errorf("cannot take %q: %s takes flags alone: see %s --help", args[0], c.CommandPath(), c.CommandPath())
}

const completionHelp = `completion prints a script for a shell, which then completes mpsctl's commands and flags.`

// shells are those that completion knows; what is written for one is the shell's own language.
var shells = map[string]func(*cobra.Command, *Invocation) error{
	"bash": func(root *cobra.Command, c *Invocation) error { return root.GenBashCompletionV2(c.Out, true) },
	"zsh":  func(root *cobra.Command, c *Invocation) error { return root.GenZshCompletion(c.Out) },
	"fish": func(root *cobra.Command, c *Invocation) error { return root.GenFishCompletion(c.Out, true) },
}

func completion(call *Invocation) *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "print a completion script for a shell", Long: completionHelp,
		Example:               "  mpsctl completion bash >/etc/bash_completion.d/mpsctl\n  mpsctl completion zsh >\"${fpath[1]}/_mpsctl\"\n  mpsctl completion fish >~/.config/fish/completions/mpsctl.fish",
		DisableFlagsInUseLine: true, ValidArgs: []string{"bash", "zsh", "fish"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 && shells[args[0]] != nil {
				return nil
			}
			return fmt.Errorf("cannot complete for %q: name one shell: bash, zsh or fish", args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			return WriteError("completion", shells[args[0]](c.Root(), call))
		},
	}
}

// WriteError is the outcome of printing an answer: that it could not be printed is no mistake of the question's.
func WriteError(what string, err error) error {
	if err == nil {
		return nil
	}
	return cli.RuntimeError{Err: fmt.Errorf("cannot print %s: %w", what, err)}
}
