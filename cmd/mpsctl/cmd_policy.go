// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl policy: it reads and explains a site's policy, for the admin who writes it.

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os/user"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy/lint"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
)

const policyHelp = `policy works on the files that define who gets what: policy.hcl and policy.d/*.hcl beside it. See docs/policy.md.`

func policyCommand(call *command.Invocation) *cobra.Command {
	c := &cobra.Command{
		Use: "policy", Short: "check and explain the policy", Long: policyHelp,
		Example: "  mpsctl policy check\n  mpsctl policy explain --partition edu --gpus 2 --constraint mps",
		Args:    command.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(check(call), explain(call))
	return c
}

// load reads the given files and folders, or the node's own policy. If that cannot be used, load prints its substitute.
func load(call *command.Invocation, paths []string) (*policyfile.Compiled, error) {
	if len(paths) > 0 {
		return policyfile.LoadFiles(paths...)
	}
	compiled, status := policyfile.ReadPolicy(call.Paths)
	if errors.Is(status.Err, fs.ErrNotExist) && status.Kept.IsZero() && !status.Hidden {
		return nil, fmt.Errorf("there is no %s, so jobs that ask for MPS fail: make one, or install the shipped one",
			call.Paths.Policy())
	}
	if status.Err != nil {
		instead := status.Instead("jobs that ask for MPS fail")
		call.PrintError("mpsctl", fmt.Errorf("cannot use %s: %s", call.Paths.Policy(), instead))
	}
	return compiled, status.Err
}

type wrong struct {
	OK         bool                    `json:"ok"`
	Complaints []policyfile.Diagnostic `json:"diagnostics"`
}

// refused prints the mistakes in a policy's text, and ends the command. Any other error is returned.
func refused(call *command.Invocation, err error) error {
	bad, mistakes := errors.AsType[*policyfile.Error](err)
	if !mistakes {
		return cli.RuntimeError{Err: err}
	}
	text := func(s command.Screen) string { return lint.Text(bad.Diagnostics(), s.Colour) }
	return call.PrintFindings("policy", wrong{false, bad.Diagnostics()}, text, true)
}

const checkHelp = `check reads a policy as the prolog does and prints its rules, or all its mistakes. Without an operand it reads this node's
policy. A folder means its policy.hcl and policy.d/*.hcl.

It warns of rules that are never tried, of groups and partitions that do not exist here, and of denials of jobs that do
not ask.

It exits with 0 if the policy can be used, and with 1 if it cannot.`

func check(call *command.Invocation) *cobra.Command {
	return &cobra.Command{
		Use: "check [FILE|DIR]...", Short: "check whether a policy can be used", Long: checkHelp,
		Example: "  mpsctl policy check\n  mpsctl policy check policy.hcl policy.d/chem.hcl",
		RunE: func(_ *cobra.Command, paths []string) error {
			compiled, err := load(call, paths)
			if err != nil {
				return refused(call, err)
			}
			answer := checked{OK: true, Rules: compiled.Rules(), Warnings: lint.Warnings(compiled, missing(state.SlurmConf("")))}
			for _, source := range compiled.Sources() {
				answer.Files = append(answer.Files, source.Name)
			}
			return call.Print("policy", answer, answer.text)
		},
	}
}

// missing returns why no job has the name of a group that this node does not know, or of a partition that is not in
// slurm.conf. What cannot be asked is not known to be missing.
func missing(conf string) lint.Missing {
	file, _ := slurm.ReadConfFile(conf, "")
	return func(variable, name string) string {
		switch {
		case variable == "job.groups":
			_, err := user.LookupGroup(name)
			if _, unknown := errors.AsType[user.UnknownGroupError](err); unknown {
				return fmt.Sprintf("this node knows no group %q: see getent group", name)
			}
		case variable == "job.partition" && len(file.Partitions) > 0 && !slices.Contains(file.Partitions, name):
			return fmt.Sprintf("%s has no partition %q: it has %.200s", conf, name, strings.Join(file.Partitions, ", "))
		}
		return ""
	}
}

// checked is a policy that can be used.
type checked struct {
	OK    bool              `json:"ok"`
	Files []string          `json:"files"`
	Rules []policyfile.Rule `json:"rules"`
	// Warnings are valid parts of the policy that have no effect.
	Warnings []policyfile.Diagnostic `json:"warnings,omitempty"`
}

func (c checked) text(screen command.Screen) string {
	var b strings.Builder
	for i, rule := range c.Rules {
		does := "grants"
		if rule.Denies {
			does = "denies"
		}
		fmt.Fprintf(&b, "%3d  %-24q %s  %s:%d\n", i+1, rule.Name, does, rule.File, rule.Line)
	}
	writeWarnings(&b, c.Warnings, screen.Colour)
	fmt.Fprintf(&b, "%s can be used: %s\n", strings.Join(c.Files, ", "), words.Count(len(c.Rules), "rule"))
	return b.String()
}

func writeWarnings(b *strings.Builder, warnings []policyfile.Diagnostic, colour bool) {
	if len(warnings) > 0 {
		b.WriteString("\n" + lint.Text(warnings, colour) + "\n")
	}
}
