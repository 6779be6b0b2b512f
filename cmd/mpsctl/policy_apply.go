// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy/lint"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const applyHelp = `apply replaces this node's policy.hcl by the given file, if the new policy can be used together with the node's own
policy.d. If there is a policy_test.hcl beside the given file, each of its cases must have the expected result. apply
prints the difference to the file that is there now, as diff -u does. The old file is there until the new one is whole, and the
mode of the file stays the same. apply installs policy_test.hcl too: mpsctl policy test runs it on the node.

With --dry-run it checks, tests and prints the same, and changes nothing.

It exits with 0 if the policy has been applied, and with 1 if it was refused: then nothing has changed.`

func apply(call *command.Invocation) *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use: "apply [--dry-run] FILE", Short: "check and test a policy, and put it into use", Long: applyHelp,
		Example: "  mpsctl policy apply new/policy.hcl",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("cannot apply: name one file: see mpsctl policy apply --help")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return applyFile(call, args[0], dryRun) },
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what would change, and change nothing")
	return c
}

type applied struct {
	Applied bool   `json:"applied"`
	File    string `json:"file"` // the file that was written
	Diff    string `json:"diff"` // to the old file, as diff -u prints it
	Tests   tested `json:"tests"`
	// Warnings are those of policy check.
	Warnings []policyfile.Diagnostic `json:"warnings,omitempty"`
}

func applyFile(call *command.Invocation, file string, dryRun bool) error {
	path := call.Paths.Policy()
	compiled, err := policyfile.LoadWith(path, file)
	if err != nil {
		return refused(call, err)
	}
	a := applied{File: path, Tests: tested{Results: []lint.Result{}}, Warnings: lint.Warnings(compiled)}
	tests, cases, err := casesBeside(file)
	if err != nil {
		return refused(call, err)
	}
	a.Tests.add(lint.Run(compiled, cases))
	if a.Tests.Failed > 0 {
		text := func(s command.Screen) string { return a.Tests.text(s) + a.unchanged() }
		return call.PrintFindings("policy", a, text, true)
	}
	if _, err := osfile.ReadRootOwned(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cli.RuntimeError{Err: err}
	}
	updated := compiled.Sources()[0].Text // that was checked: the file may have changed since
	if a.Diff = unified(path, file, updated); dryRun {
		return call.Print("policy", a, a.text)
	}
	if err := replaceFile(path, []byte(updated), osfile.OpenFolder); err != nil {
		return cli.RuntimeError{Err: err}
	}
	if tests != nil {
		if err := replaceFile(besidePolicy(path), tests, osfile.OpenFolder); err != nil {
			return cli.RuntimeError{Err: fmt.Errorf("the policy has been applied without its cases: %w", err)}
		}
	}
	if err := policyfile.KeepPolicy(call.Paths, compiled); err != nil {
		return cli.RuntimeError{Err: fmt.Errorf("the policy has been applied, and no copy of it is kept: %w", err)}
	}
	a.Applied = true
	return call.Print("policy", a, a.text)
}

func besidePolicy(policy string) string {
	return filepath.Join(filepath.Dir(policy), "policy_test.hcl")
}

// casesBeside returns the text and the cases of the policy_test.hcl beside a policy. Both are nil if there is none.
// In a folder such as /tmp, another user may have put the file there. So only the cases of root, or of the policy's
// owner, are installed.
func casesBeside(policy string) (text []byte, cases []lint.Case, err error) {
	file := besidePolicy(policy)
	var casesStat, policyStat unix.Stat_t
	if err := unix.Lstat(file, &casesStat); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err := unix.Stat(policy, &policyStat); err != nil {
		return nil, nil, fmt.Errorf("cannot read cases: cannot read %s: %w", policy, err)
	}
	foreign := func(uid uint32) error {
		if uid == 0 || uid == policyStat.Uid {
			return nil
		}
		return fmt.Errorf("cannot read cases: the owner of %s is uid %d, and that of %s is uid %d: "+
			"remove the file, or change its owner", file, uid, policy, policyStat.Uid)
	}
	if err := foreign(casesStat.Uid); err != nil { // it may be a link
		return nil, nil, err
	}
	text, owner, err := osfile.ReadAny(file)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read cases: %w", err)
	}
	if err := foreign(owner); err != nil {
		return nil, nil, err
	}
	cases, err = lint.ParseCases(text, file)
	return text, cases, err
}

func (a applied) unchanged() string { return "Nothing has changed: " + a.File + " stays as it is.\n" }

func (a applied) text(screen command.Screen) string {
	var b strings.Builder
	b.WriteString(cmp.Or(a.Diff, "No line changes.\n"))
	if n := len(a.Tests.Results); n > 0 {
		fmt.Fprintf(&b, "%s passed\n", words.Count(n, "case"))
	}
	writeWarnings(&b, a.Warnings, screen.Colour)
	if !a.Applied {
		return b.String() + a.unchanged()
	}
	fmt.Fprintf(&b, "%s is the policy now: the next job has it\n", a.File)
	return b.String()
}
