// SPDX-License-Identifier: Apache-2.0

// Package command is the frame of mpsctl and mps-tune: their common flags, errors, exit codes, help texts and output.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/words"
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

// Run runs a program. It returns 0 for success, 1 if something was found or failed, and 2 for a wrong command line.
func Run(p cli.Process, program Constructor) int {
	call := &Invocation{Process: p}
	root := program(call)
	root.Version, root.SilenceErrors, root.SilenceUsage = cli.Version(), true, true
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return call.Paths.Check() }
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.BoolVar(&call.JSON, "json", false, "print JSON")
	flags.StringVar(&call.Paths.Root, "root", "",
		"move /etc/slurm-mps, /run/slurm-mps and /var/log/slurm-mps below `DIR`")
	usage := strings.ReplaceAll(root.UsageTemplate(), "FlagUsages", fmt.Sprint("FlagUsagesWrapped ", cli.HelpColumns))
	root.SetUsageTemplate(usage)
	finish(root)
	root.SetArgs(call.Args)
	root.SetOut(call.Out)
	root.SetErr(call.Err)
	err := root.Execute()
	switch {
	case err == nil:
		return cli.ExitOK
	case errors.Is(err, cli.ErrFindings):
		return cli.ExitFindings
	}
	call.PrintError(root.Name(), err)
	if _, failed := errors.AsType[cli.RuntimeError](err); failed {
		return cli.ExitFindings
	}
	return cli.ExitUsage
}

// typeNames are the types of flags in words.
var typeNames = map[string]string{
	"int": "a whole number", "uint32": "a whole number", "duration": "a time like 10s or 5m", "bool": "true or false",
	"stringSlice": "values with commas",
}

func flagError(c *cobra.Command, err error) error {
	advice := "see " + c.CommandPath() + " --help"
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f := invalid.GetFlag()
		return fmt.Errorf("cannot read --%s: it is %q: want %s: %s",
			f.Name, invalid.GetValue(), typeNames[f.Value.Type()], advice)
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var known []string
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		name := cmp.Or(unknown.GetSpecifiedShortnames(), unknown.GetSpecifiedName())
		advice = words.Suggest("--", name, known, c.CommandPath())
	}
	return fmt.Errorf("cannot read flags: %w: %s", err, advice)
}

// NoArgs is for commands without operands, and for commands with subcommands.
func NoArgs(c *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !c.HasSubCommands():
		return fmt.Errorf("cannot take %q: %s takes only flags: see %s --help",
			args[0], c.CommandPath(), c.CommandPath())
	}
	var known []string
	for _, below := range c.Commands() {
		known = append(known, below.Name())
	}
	advice := words.Suggest("", args[0], known, c.CommandPath())
	return fmt.Errorf("cannot run %q: there is no such command: %s", args[0], advice)
}

// SuggestShare adds to the error of a share the word that was probably meant.
func SuggestShare(err error, share string) error {
	like := words.Nearest(share, []string{"none", "even"})
	if err == nil || like == "" || !strings.HasSuffix(err.Error(), " or a list like 3:1") { // the share has none of the forms
		return err
	}
	return fmt.Errorf("%w: did you mean %s?", err, like)
}

// SignalContext returns a context that ends with the first SIGINT, SIGTERM or SIGHUP. After stop, these signals end
// the program as usual.
func SignalContext() (ctx context.Context, stop context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

// Print prints an answer: its JSON if --json was given, or else its text. The answer's name is for the error.
func (call *Invocation) Print(name string, answer any, text func(Screen) string) error {
	if call.JSON {
		return WriteError(name, cli.WriteJSON(call.Out, answer))
	}
	_, err := io.WriteString(call.Out, text(call.Screen()))
	return WriteError(name, err)
}

// PrintFindings prints an answer like Print. If the answer has findings, it then ends the command with their exit code.
func (call *Invocation) PrintFindings(name string, answer any, text func(Screen) string, found bool) error {
	if err := call.Print(name, answer, text); err != nil || !found {
		return err
	}
	return cli.ErrFindings
}

// WriteError returns the error of printing an answer. The error is not a mistake in usage.
func WriteError(name string, err error) error {
	if err == nil {
		return nil
	}
	return cli.RuntimeError{Err: fmt.Errorf("cannot print %s: %w", name, err)}
}

// Variable returns a variable of the environment, "" if it is not set.
func (call *Invocation) Variable(name string) string {
	for _, entry := range call.Env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// term matches the indentation of a line of a list, with the term that the rest of the line explains.
var term = regexp.MustCompile(`^ +(\S+ {2,})?`)

// fill breaks a help text into lines. Indented lines stay separate.
func fill(text string) string {
	screen := Screen{Columns: cli.HelpColumns}
	var b strings.Builder
	var words string
	flush := func() {
		if words != "" {
			b.WriteString(screen.Wrap("", words))
			words = ""
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		head := term.FindString(line)
		if head == "" && line != "" {
			words += line + " "
			continue
		}
		flush()
		rest := strings.TrimPrefix(line, head)
		b.WriteString(head + strings.TrimLeft(screen.Wrap(strings.Repeat(" ", len(head)), rest), " "))
	}
	flush()
	return strings.TrimRight(b.String(), "\n")
}

// finish fills the help texts of a command and its subcommands, whose usage lines have flags only as they are written,
// and completes the values of their flags. A flag for a number or a name has no completions, unless its command has registered some: not even file names.
func finish(c *cobra.Command) {
	c.Long = fill(c.Long)
	c.DisableFlagsInUseLine = !c.HasSubCommands() && c.Name() != "help"
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		value, _ := pflag.UnquoteUsage(f)
		switch _, registered := c.GetFlagCompletionFunc(f.Name); {
		case registered, strings.Contains(value, "FILE"), f.Value.Type() == "bool":
		case f.Name == "root":
			_ = c.MarkPersistentFlagDirname(f.Name)
		default:
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
		}
	})
	for _, below := range c.Commands() {
		finish(below)
	}
}
