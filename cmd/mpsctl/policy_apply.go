// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy/lint"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const applyHelp = `apply replaces this node's policy.hcl by the given file, if the new policy can be used together with the node's own
policy.d. If there is a policy_test.hcl beside the given file, each of its cases must have the expected result. apply
prints the difference to the file that is there now, as diff -u does. The old file is there until the new one is whole, and the
mode of the file stays the same. apply installs policy_test.hcl too: mpsctl policy test runs it on the node. The last
five policies that were replaced are kept with their cases in the folder old beside policy.hcl, and apply prints the
command that goes back.

With --dry-run it checks, tests and prints the same, and changes nothing. Of the copy /var/lib/slurm-mps/policy.json,
apply takes the policy.hcl.

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
	Back    string `json:"back,omitempty"` // the command that applies the replaced policy again
	// Warnings are those of policy check.
	Warnings []policyfile.Diagnostic `json:"warnings,omitempty"`
}

func applyFile(call *command.Invocation, file string, dryRun bool) error {
	path := call.Paths.Policy()
	compiled, err := policyfile.LoadWith(path, file)
	if err != nil {
		return refused(call, err)
	}
	a := applied{File: path, Tests: tested{Results: []lint.Result{}}, Warnings: lint.Warnings(compiled, missing(state.SlurmConf("")))}
	tests, cases, err := casesBeside(file)
	if err != nil {
		return refused(call, err)
	}
	a.Tests.add(lint.Run(compiled, cases))
	if a.Tests.Failed > 0 {
		text := func(s command.Screen) string { return a.Tests.text(s) + a.unchanged() }
		return call.PrintFindings("policy", a, text, true)
	}
	old, err := osfile.ReadRootOwned(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cli.RuntimeError{Err: err}
	}
	updated := compiled.Sources()[0].Text // that was checked: the file may have changed since
	if a.Diff = unified(path, file, updated); dryRun {
		return call.Print("policy", a, a.text)
	}
	if err == nil && string(old) != updated {
		kept, err := keepReplaced(path, old)
		if err != nil {
			return cli.RuntimeError{Err: fmt.Errorf("cannot keep the replaced policy: %w", err)}
		}
		if _, err := policyfile.LoadWith(path, kept); err == nil { // a broken one is kept, and is no way back
			a.Back = words.Shell("mpsctl", "policy", "apply", kept) + call.Paths.Flag()
		}
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
	text, owner, err := osfile.ReadAny(file)
	for _, uid := range []uint32{casesStat.Uid, owner} { // the file may be a link
		if uid != 0 && uid != policyStat.Uid {
			return nil, nil, fmt.Errorf("cannot read cases: the owner of %s is uid %d, and that of %s is uid %d: "+
				"remove the file, or change its owner", file, uid, policy, policyStat.Uid)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read cases: %w", err)
	}
	cases, err = lint.ParseCases(text, file)
	return text, cases, err
}

// maxReplaced is how many replaced policies are kept.
const maxReplaced = 5

// keepReplaced keeps a policy before it is replaced, with the cases beside it, and returns the path of the copy. Each
// has a folder of its own, so that apply finds the cases. The oldest folders are removed. Only root can read them, and
// no link is followed.
func keepReplaced(policy string, text []byte) (kept string, err error) {
	beside := filepath.Dir(policy)
	if _, err := osfile.ListRootOwned(beside); err != nil {
		return "", err
	}
	folder := filepath.Join(beside, "old")
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	names, err := osfile.ListRootOwned(folder)
	if err != nil {
		return "", err
	}
	for _, name := range names[:max(len(names)+1-maxReplaced, 0)] {
		err = errors.Join(err, os.RemoveAll(filepath.Join(folder, name)))
	}
	kept = filepath.Join(folder, time.Now().UTC().Format("20060102-150405.000000"), filepath.Base(policy))
	err = errors.Join(err, os.Mkdir(filepath.Dir(kept), 0o700), replaceFile(kept, text, osfile.OpenFolder))
	if cases, casesErr := osfile.ReadRootOwned(besidePolicy(policy)); casesErr == nil {
		err = errors.Join(err, replaceFile(besidePolicy(kept), cases, osfile.OpenFolder))
	}
	return kept, err
}

func (a applied) unchanged() string { return "Nothing has changed: " + a.File + " stays as it is.\n" }

func (a applied) text(screen command.Screen) string {
	var b strings.Builder
	b.WriteString(cmp.Or(a.Diff, "No line changes.\n"))
	b.WriteString(a.Tests.text(screen))
	writeWarnings(&b, a.Warnings, screen.Colour)
	if !a.Applied {
		return b.String() + a.unchanged()
	}
	fmt.Fprintf(&b, "%s is the policy now: the next job has it\n", a.File)
	if a.Back != "" {
		fmt.Fprintf(&b, "To go back: %s\n", a.Back)
	}
	return b.String()
}

// diffLimit bounds a run of diff, which takes milliseconds for files of this size.
const diffLimit = 30 * time.Second

// unified returns the difference of a file and a text as diff -u prints it, "" if there is none. If diff cannot run, it
// returns the reason, because a difference that is not printed keeps no policy from its node.
func unified(old, newName, updated string) (text string) {
	ctx, cancel := context.WithTimeout(context.Background(), diffLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/diff", "-auN", "--label", old, "--label", newName, "--", old, "-")
	cmd.Stdin, cmd.Env = strings.NewReader(updated), []string{"LC_ALL=C"}
	printed, err := cmd.Output()
	if exit, ran := errors.AsType[*exec.ExitError](err); err != nil && (!ran || exit.ExitCode() != 1) {
		return fmt.Sprintf("cannot print the difference: %v\n", err)
	}
	for line := range strings.Lines(string(printed)) {
		text += words.Printable(strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "    ")) + "\n"
	}
	return text
}
