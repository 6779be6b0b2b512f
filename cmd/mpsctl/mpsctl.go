// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/spf13/cobra"
)

const rootHelp = `mpsctl looks at a node and at what slurm-mps would do there.

It exits with 0 if all is well, 1 if something was found or failed, and 2 if it was not understood. --json prints JSON
instead of text. Text has no colour on a pipe or if NO_COLOR is set.`

// mpsctl is the program.
func mpsctl(call *command.Invocation) *cobra.Command {
	return newRoot(call, statusCommand, auditCommand, policyCommand, reapCommand, doctorCommand,
		metricsCommand, reportCommand, wasteCommand)
}

// newRoot returns mpsctl with these commands, and with completion, help and version.
func newRoot(call *command.Invocation, constructors ...command.Constructor) *cobra.Command {
	root := &cobra.Command{
		Use: "mpsctl", Short: "look at a node, and print what slurm-mps would do", Long: rootHelp,
		Example: "  mpsctl doctor\n  mpsctl status\n  mpsctl audit --json\n  mpsctl policy explain --gpu H200 --ranks 8 --constraint mps",
		Args:    command.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.AddCommand(completionCommand(call), versionCommand(call))
	for _, construct := range constructors {
		root.AddCommand(construct(call))
	}
	addHelp(root)
	return root
}

// addHelp adds cobra's command help. It refuses the name of an unknown command.
func addHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Short, help.Long = "print the help of a command", "help prints the help of a command."
	help.Args = func(_ *cobra.Command, args []string) error {
		c, rest, _ := root.Find(args)
		return command.NoArgs(c, rest)
	}
}

func versionCommand(call *command.Invocation) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: command.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(call.Out, cli.Version())
			return command.WriteError("version", err)
		},
	}
}

const completionHelp = `completion prints a script for a shell, which then completes the commands and flags of mpsctl, or the
flags of mps-tune. The packages install these scripts, and one for mpirun-wrap.`

// shells are the shells that completion supports. Each script is in that shell's language.
var shells = map[string]func(*cobra.Command, io.Writer) error{
	"bash": func(root *cobra.Command, out io.Writer) error { return root.GenBashCompletionV2(out, true) },
	"zsh":  (*cobra.Command).GenZshCompletion,
	"fish": func(root *cobra.Command, out io.Writer) error { return root.GenFishCompletion(out, true) },
}

func completionCommand(call *command.Invocation) *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish [mps-tune]", Short: "print a completion script for a shell", Long: completionHelp,
		Example: "  mpsctl completion bash >/etc/bash_completion.d/mpsctl\n" +
			"  mpsctl completion zsh >\"${fpath[1]}/_mpsctl\"\n" +
			"  mpsctl completion fish >~/.config/fish/completions/mpsctl.fish",
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args: func(_ *cobra.Command, args []string) error {
			known := len(args) == 1 || len(args) == 2 && args[1] == "mps-tune"
			if known && shells[args[0]] != nil {
				return nil
			}
			return fmt.Errorf("cannot complete for %q: name one shell: bash, zsh or fish", args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			program := c.Root()
			if len(args) == 2 {
				program = &cobra.Command{Use: args[1]} // a script asks the program, so it has only its name
			}
			return command.WriteError("completion", shells[args[0]](program, call.Out))
		},
	}
}
