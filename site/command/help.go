// SPDX-License-Identifier: Apache-2.0

package command

import (
	"regexp"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

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
