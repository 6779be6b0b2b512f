// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
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

// values lists the completions of a flag with this name. A flag for a number or a name has no completions: not even
// file names.
var values = map[string][]string{
	"gpu":   modelNames(),
	"share": {"none", "even", "overlap:", "weight:"},
	"mem":   {"none", "even"},
}

func modelNames() (names []string) {
	for _, m := range policy.Models() {
		names = append(names, strings.ReplaceAll(m.Name, " ", "-"))
	}
	return names
}

// finish fills the help texts of a command and its subcommands, and completes the values of their flags.
func (call *Invocation) finish(c *cobra.Command) {
	c.Long = fill(c.Long)
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		what, _ := pflag.UnquoteUsage(f)
		switch {
		case f.Name == "root":
			_ = c.MarkPersistentFlagDirname(f.Name)
		case f.Name == "job":
			_ = c.RegisterFlagCompletionFunc(f.Name, call.jobs)
		case !strings.Contains(what, "FILE") && f.Value.Type() != "bool":
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(values[f.Name], cobra.ShellCompDirectiveNoFileComp))
		}
	})
	for _, below := range c.Commands() {
		call.finish(below)
	}
}

// jobs returns the jobs that have a lease on this node.
func (call *Invocation) jobs(*cobra.Command, []string, string) (ids []string, _ cobra.ShellCompDirective) {
	boot, _ := site.BootID()
	jobs, _ := lease.OpenReadOnly(call.Paths.Run(), boot).Jobs()
	for _, id := range slices.Sorted(slices.Values(jobs)) {
		ids = append(ids, strconv.FormatUint(uint64(id), 10))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
