// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy/lint"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
)

const testHelp = `test runs the cases of files, as unit tests. A case is a job, and the expected decision of the policy. The policy is the
one in the file's folder, unless --policy names another file or folder. Without an operand, test reads this node's
policy_test.hcl.

It exits with 0 if every case has the expected result, and with 1 if a case has another result.`

func test(call *command.Invocation) *cobra.Command {
	var paths []string
	c := &cobra.Command{
		Use: "test [--policy FILE|DIR] [FILE]...", Short: "run a policy's own tests", Long: testHelp,
		Example: "  mpsctl policy test /etc/slurm-mps/policy_test.hcl",
		RunE: func(_ *cobra.Command, files []string) error {
			if len(files) == 0 {
				files = []string{filepath.Join(filepath.Dir(call.Paths.Policy()), "policy_test.hcl")}
			}
			return testAll(call, files, paths)
		},
	}
	c.Flags().StringArrayVar(&paths, "policy", nil, "test the policy in this `FILE|DIR`")
	return c
}

func testAll(call *command.Invocation, files, paths []string) error {
	var all tested
	for _, file := range files {
		tested := paths
		if len(tested) == 0 {
			tested = []string{filepath.Dir(file)}
		}
		compiled, err := policyfile.LoadFiles(tested...)
		if errors.Is(err, fs.ErrNotExist) && len(paths) == 0 {
			err = fmt.Errorf("cannot test %s: there is no policy.hcl beside it: name the policy with --policy", file)
		}
		if err != nil {
			return refused(call, err)
		}
		text, err := policyfile.ReadAny(file)
		if err != nil {
			return refused(call, err)
		}
		cases, err := lint.ParseCases(text, file)
		if err != nil {
			return refused(call, err)
		}
		all.add(lint.Run(compiled, cases))
	}
	return call.PrintFindings("policy", all, all.text, all.Failed > 0)
}

type tested struct {
	Results []lint.Result `json:"results"`
	Failed  int           `json:"failed"`
}

func (t *tested) add(results []lint.Result) {
	t.Results = append(t.Results, results...)
	for _, r := range results {
		if !r.Passed {
			t.Failed++
		}
	}
}

func (t tested) text(command.Screen) string {
	var b strings.Builder
	for _, r := range t.Results {
		result := "FAIL"
		if r.Passed {
			result = "ok  "
		}
		fmt.Fprintf(&b, "%s %s:%d: case %q\n", result, r.File, r.Line, r.Name)
		for _, difference := range r.Wrong {
			fmt.Fprintf(&b, "     %s\n", difference)
		}
	}
	fmt.Fprintf(&b, "%s passed, %d failed\n", words.Count(len(t.Results)-t.Failed, "case"), t.Failed)
	return b.String()
}
