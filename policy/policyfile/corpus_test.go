// SPDX-License-Identifier: Apache-2.0

package policyfile_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/lint"
	. "github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/txtar"
)

// corpus is an archive of policies, each with its expected results. A line that begins with === names a result: "wrong"
// and the whole error, "warned" and all warnings, or "job", a request and the decision.
const corpus = "testdata/corpus.txtar"

func TestCorpus(t *testing.T) {
	policies := readCorpus(t)
	for _, name := range policies.Names() {
		t.Run(strings.TrimSuffix(name, ".hcl"), func(t *testing.T) {
			golden.CompareIn(t, corpus, name, outcome(t, policies.Files[name]))
		})
	}
}

func readCorpus(t testing.TB) txtar.Archive {
	t.Helper()
	policies, err := txtar.Read(corpus)
	if err != nil || len(policies.Files) < 100 {
		t.Fatalf("%d cases, %v", len(policies.Files), err)
	}
	return policies
}

// outcome is the text of a file with the real results in the place of the expected ones.
func outcome(t *testing.T, content string) string {
	t.Helper()
	source, expected, ok := strings.Cut(content, "=== ")
	if !ok {
		t.Fatal("the file has no expected result")
	}
	compiled, err := Parse([]byte(source), "policy.hcl")
	if err != nil {
		return source + "=== wrong\n" + optionsCut(complaints(t, err))
	}
	var out strings.Builder
	out.WriteString(source)
	if warnings := lint.Warnings(compiled, noneMissing); len(warnings) > 0 {
		out.WriteString("=== warned\n" + lint.Text(warnings, false))
	}
	for section := range strings.SplitSeq(expected, "=== ") {
		line, _, _ := strings.Cut(section, "\n")
		if line == "warned" {
			continue
		}
		asked, isJob := strings.CutPrefix(line, "job ")
		if !isJob {
			return source + "=== right\n"
		}
		var r policy.Request
		if err := json.Unmarshal([]byte(asked), &r); err != nil {
			t.Fatalf("%s: %v", asked, err)
		}
		fmt.Fprintf(&out, "=== %s\n%s\n", line, optionsCut(decision(compiled.Policy().Decide(r))))
	}
	return out.String()
}

// optionsCut writes OPTIONS for the names of all options, so that no case changes with a new option.
func optionsCut(text string) string {
	return strings.ReplaceAll(text, strings.Join(policy.OptionNames(), ", "), "OPTIONS")
}

func complaints(t *testing.T, err error) string {
	t.Helper()
	var wrong *Error
	if !errors.As(err, &wrong) {
		t.Fatalf("an error without a place: %v", err)
	}
	return lint.Text(wrong.Diagnostics(), false)
}

// decision is a verdict in one line. It has only those settings of a grant that are not the default.
func decision(v policy.Decision) string {
	switch {
	case !v.Requested:
		return "not asked"
	case v.Denied != "":
		return fmt.Sprintf("rule %q: denied: %s", v.Rule, v.Denied)
	}
	line := fmt.Sprintf("rule %q: granted", v.Rule)
	usual := policy.DefaultGrant().Settings()
	for i, s := range v.Grant.Settings() {
		if s != usual[i] {
			line += " " + s.Name + "=" + s.Value
		}
	}
	return line
}

func noneMissing(string, string) string { return "" }
