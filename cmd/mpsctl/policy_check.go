// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy/lint"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
)

const checkHelp = `check reads a policy as the prolog does and prints its rules, or all its mistakes. Without an operand it reads this node's
policy. A folder means its policy.hcl and policy.d/*.hcl.

It warns of rules that are never tried, of comparisons that no job can meet, and of denials of jobs that do not ask.

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
			answer := checked{OK: true, Rules: compiled.Rules(), Warnings: lint.Warnings(compiled)}
			for _, source := range compiled.Sources() {
				answer.Files = append(answer.Files, source.Name)
			}
			return call.Print("policy", answer, answer.text)
		},
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
