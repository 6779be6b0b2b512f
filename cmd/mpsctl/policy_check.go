// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/spf13/cobra"
)

const checkHelp = `check reads a policy as the prolog does and prints its rules, or all its mistakes. Without an operand it reads this node's
policy. A folder means its policy.hcl and policy.d/*.hcl.

It warns of rules that are never tried, and of comparisons that no job can meet.

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
			answer := checked{true, compiled.Files(), compiled.Rules(), compiled.Warnings()}
			return call.Print("policy", answer, answer.text)
		},
	}
}

// checked is a policy that can be used.
type checked struct {
	OK    bool                  `json:"ok"`
	Files []string              `json:"files"`
	Rules []policyfile.RuleInfo `json:"rules"`
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
	fmt.Fprintf(&b, "%s can be used: %s\n", strings.Join(c.Files, ", "), site.Count(len(c.Rules), "rule"))
	return b.String()
}

func writeWarnings(b *strings.Builder, warnings []policyfile.Diagnostic, colour bool) {
	if len(warnings) > 0 {
		b.WriteByte('\n')
		_ = policyfile.WriteAll(b, warnings, colour) // a Builder takes everything
		b.WriteByte('\n')
	}
}

const formatHelp = `fmt prints a policy in HCL's own form. With - it reads standard input. Without an operand it is this node's policy.hcl.`

func format(call *command.Invocation) *cobra.Command {
	var write, compare bool
	c := &cobra.Command{
		Use: "fmt [--write|--check] [FILE]...", Short: "print a policy in HCL's own form", Long: formatHelp,
		Example: "  mpsctl policy fmt --write policy.hcl\n  mpsctl policy fmt --check policy.d/*.hcl",
		Args: func(*cobra.Command, []string) error {
			if write && compare {
				return errors.New("cannot format with --write and --check: give one of them")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, paths []string) error {
			if len(paths) == 0 {
				paths = []string{call.Paths.Policy()}
			}
			return formatAll(call, paths, write, compare)
		},
	}
	c.Flags().BoolVar(&write, "write", false, "write the files")
	c.Flags().BoolVar(&compare, "check", false, "print the names of files that would change, and exit with 1")
	return c
}

func formatAll(call *command.Invocation, paths []string, write, compare bool) error {
	differ := false
	for _, path := range paths {
		source, err := readFrom(path)
		if err != nil {
			return cli.RuntimeError{Err: err}
		}
		formatted, err := inOwnForm(source, path)
		if err != nil {
			return refused(call, err)
		}
		same := bytes.Equal(source, formatted)
		differ = differ || !same
		switch {
		case compare && !same:
			_, err = fmt.Fprintln(call.Out, path)
		case write && !same:
			err = replaceFile(path, formatted)
		case !compare && !write:
			_, err = call.Out.Write(formatted)
		}
		if err != nil {
			return command.WriteError(path, err)
		}
	}
	if compare && differ {
		return cli.ErrFindings
	}
	return nil
}

// inOwnForm returns a policy in HCL's own form. It is not in package policyfile, because it needs a part of hcl that
// takes 0.9 ms to start, and the prolog has no use for that.
func inOwnForm(source []byte, name string) ([]byte, error) {
	if err := policyfile.CheckSyntax(source, name); err != nil {
		return nil, err
	}
	return hclwrite.Format(source), nil
}

func readFrom(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(os.Stdin)
	}
	content, _, err := site.ReadAny(path)
	return content, err
}
