// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl policy: it reads, applies, explains and tests a site's policy, for the admin who writes it.

package main

import (
	"errors"
	"fmt"

	"github.com/slurm-mps/slurm-mps/policy/lint"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/spf13/cobra"
)

const policyHelp = `policy works on the files that define who gets what: policy.hcl and policy.d/*.hcl beside it. See docs/policy.md.`

func policyCommand(call *command.Invocation) *cobra.Command {
	c := &cobra.Command{
		Use: "policy", Short: "check, apply, explain and test the policy", Long: policyHelp,
		Example: "  mpsctl policy check\n  mpsctl policy explain --partition edu --gpus 2 --constraint mps",
		Args:    command.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(check(call), apply(call), explain(call), test(call))
	return c
}

// load reads the given files and folders, or the node's own policy. If that cannot be used, load prints its substitute.
func load(call *command.Invocation, paths []string) (*policyfile.Compiled, error) {
	if len(paths) > 0 {
		return policyfile.LoadFiles(paths...)
	}
	compiled, status := policyfile.ReadPolicy(call.Paths)
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
	var bad *policyfile.Error
	if !errors.As(err, &bad) {
		return cli.RuntimeError{Err: err}
	}
	text := func(s command.Screen) string { return lint.Text(bad.Diagnostics(), s.Colour) }
	return call.PrintFindings("policy", wrong{false, bad.Diagnostics()}, text, true)
}
