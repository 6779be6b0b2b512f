// SPDX-License-Identifier: Apache-2.0

// Package mpsctl is the program mpsctl: its commands, their common flags, their errors and their output. The program
// mps-tune also uses this package.
package mpsctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Invocation is the input of a command. JSON and Paths are set when the command runs, after the flags are parsed.
type Invocation struct {
	cli.Process
	JSON  bool
	Paths site.Paths
}

// Constructor makes a command.
type Constructor func(*Invocation) *cobra.Command

// Commands are all commands of mpsctl.
func Commands() []Constructor {
	return []Constructor{statusCommand, auditCommand, planCommand, policyCommand, reapCommand, doctorCommand, metricsCommand, reportCommand, siteCommand}
}

// Run runs mpsctl. It returns 0 for success, 1 if something was found or failed, and 2 for a wrong command line.
func Run(p cli.Process, makers ...Constructor) int {
	call := &Invocation{Process: p}
	root := newRoot()
	root.AddCommand(completion(call), version(call))
	for _, maker := range makers {
		root.AddCommand(maker(call))
	}
	addHelp(root)
	return call.execute(root)
}

// RunAlone runs a program that is one command. It has the flags, the errors and the exit codes of mpsctl.
func RunAlone(p cli.Process, maker Constructor) int {
	call := &Invocation{Process: p}
	return call.execute(maker(call))
}

// execute adds to a program's command what every program has, and runs the command.
func (call *Invocation) execute(root *cobra.Command) int {
	root.Version, root.SilenceErrors, root.SilenceUsage = cli.Version(), true, true
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return call.Paths.Check() }
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.BoolVar(&call.JSON, "json", false, "print JSON")
	flags.StringVar(&call.Paths.Root, "root", "",
		"move /etc/slurm-mps, /run/slurm-mps and /var/log/slurm-mps below `DIR`")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages", fmt.Sprint("FlagUsagesWrapped ", cli.HelpColumns)))
	call.finish(root)
	root.SetArgs(call.Args)
	root.SetOut(call.Out)
	root.SetErr(call.Err)
	err := root.Execute()
	var failed cli.RuntimeError
	switch {
	case err == nil:
		return cli.ExitOK
	case errors.Is(err, cli.ErrFindings):
		return cli.ExitFindings
	}
	call.PrintError(root.Name(), err)
	if errors.As(err, &failed) {
		return cli.ExitFindings
	}
	return cli.ExitUsage
}

const rootHelp = `mpsctl looks at a node and at what slurm-mps would do there.

It exits with 0 if all is well, 1 if something was found or failed, and 2 if it was not understood. --json prints JSON
instead of text. Text has no colour on a pipe or if NO_COLOR is set.`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use: "mpsctl", Short: "look at a node, and print what slurm-mps would do", Long: rootHelp,
		Example: "  mpsctl doctor\n  mpsctl status --watch\n  mpsctl audit --json\n  mpsctl plan --gpu H200 --ranks 8",
		Args:    NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	return root
}

// addHelp adds cobra's command help. It refuses the name of an unknown command.
func addHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Short, help.Long = "print the help of a command", "help prints the help of a command."
	help.Args = func(_ *cobra.Command, args []string) error {
		c, rest, _ := root.Find(args)
		return NoArgs(c, rest)
	}
}

func version(call *Invocation) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: NoArgs, DisableFlagsInUseLine: true,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(call.Out, cli.Version())
			return WriteError("version", err)
		},
	}
}

// typeNames are the types of flags in words.
var typeNames = map[string]string{
	"int": "a whole number", "uint32": "a whole number", "duration": "a time like 10s or 5m", "bool": "true or false",
	"stringSlice": "values with commas",
}

func flagError(c *cobra.Command, err error) error {
	do := "see " + c.CommandPath() + " --help"
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		f := invalid.GetFlag()
		return fmt.Errorf("cannot read --%s: it is %q: want %s: %s", f.Name, invalid.GetValue(), typeNames[f.Value.Type()], do)
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var known []string
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		do = cli.Suggest("--", cmp.Or(unknown.GetSpecifiedShortnames(), unknown.GetSpecifiedName()), known, c.CommandPath())
	}
	return fmt.Errorf("cannot read flags: %w: %s", err, do)
}

// SignalContext returns a context that ends with the first SIGINT, SIGTERM or SIGHUP. After stop, these signals end
// the program as usual.
func SignalContext() (ctx context.Context, stop context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

// NoArgs is for commands without operands, and for commands with subcommands.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.HasSubCommands() {
		do := "see " + c.CommandPath() + " --help"
		c.SuggestionsMinimumDistance = 2
		if names := c.SuggestionsFor(args[0]); len(names) > 0 {
			do = "did you mean " + strings.Join(names, " or ") + "?"
		}
		return fmt.Errorf("cannot run %q: there is no such command: %s", args[0], do)
	}
	return fmt.Errorf("cannot take %q: %s takes flags alone: see %s --help", args[0], c.CommandPath(), c.CommandPath())
}

const completionHelp = `completion prints a script for a shell, which then completes the commands and flags of mpsctl, or the
flags of mps-tune. The packages install these scripts, and one for mpirun-wrap.`

// shells are the shells that completion supports. Each script is in that shell's language.
var shells = map[string]func(*cobra.Command, *Invocation) error{
	"bash": func(root *cobra.Command, c *Invocation) error { return root.GenBashCompletionV2(c.Out, true) },
	"zsh":  func(root *cobra.Command, c *Invocation) error { return root.GenZshCompletion(c.Out) },
	"fish": func(root *cobra.Command, c *Invocation) error { return root.GenFishCompletion(c.Out, true) },
}

func completion(call *Invocation) *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish [mps-tune]", Short: "print a completion script for a shell", Long: completionHelp,
		Example:               "  mpsctl completion bash >/etc/bash_completion.d/mpsctl\n  mpsctl completion zsh >\"${fpath[1]}/_mpsctl\"\n  mpsctl completion fish >~/.config/fish/completions/mpsctl.fish",
		DisableFlagsInUseLine: true, ValidArgs: []string{"bash", "zsh", "fish"},
		Args: func(_ *cobra.Command, args []string) error {
			alone := len(args) == 1 || len(args) == 2 && args[1] == "mps-tune"
			if alone && shells[args[0]] != nil {
				return nil
			}
			return fmt.Errorf("cannot complete for %q: name one shell: bash, zsh or fish", args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			program := c.Root()
			if len(args) == 2 {
				program = &cobra.Command{Use: args[1]} // a script asks the program, so it has only its name
			}
			return WriteError("completion", shells[args[0]](program, call))
		},
	}
}

// WriteError returns the error of printing an answer. The error is not a mistake in usage.
func WriteError(what string, err error) error {
	if err == nil {
		return nil
	}
	return cli.RuntimeError{Err: fmt.Errorf("cannot print %s: %w", what, err)}
}
