// SPDX-License-Identifier: Apache-2.0

package policyfile_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/lint"
	. "github.com/slurm-mps/slurm-mps/policy/policyfile"
)

// maxFuzzed is the length of the longest source that FuzzParse tries. A run with 18 KB takes a second, and its inputs
// are no others.
const maxFuzzed = 4 << 10

func FuzzParse(f *testing.F) {
	shipped, err := os.ReadFile("../../site/etc/policy.hcl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(shipped)
	f.Add([]byte("version = 1\nrule \"r\" {\n when = job.gpus[0] == 3\n grant {}\n}\n"))
	f.Add([]byte("version = 1e400"))
	policies := readCorpus(f)
	for _, name := range policies.Names() {
		if source, _, _ := strings.Cut(policies.Files[name], "=== "); len(source) <= maxFuzzed {
			f.Add([]byte(source))
		}
	}
	f.Fuzz(func(t *testing.T, source []byte) {
		if len(source) > maxFuzzed {
			return
		}
		compiled, err := Parse(source, "p")
		if err != nil {
			if line := err.Error(); strings.ContainsAny(line, "\n\x00\x1b") || !strings.HasPrefix(line, "p:") {
				t.Errorf("an error that breaks a log: %q", line)
			}
			var complaint *Error
			if !errors.As(err, &complaint) {
				t.Fatalf("an error of type %T", err)
			}
			if lint.Text(complaint.Diagnostics(), true) == "" {
				t.Error("no text")
			}
			return
		}
		for _, r := range oddRequests {
			lint.Explain(compiled, r)
			checkDenial(t, compiled.Policy().Decide(r).Denied)
		}
	})
}

// failures are the reasons why an expression with the right types can fail for a job. The type checker refuses
// everything else when the policy is read.
var failures = []string{
	"Invalid index: there is no such element: write try(…, DEFAULT)",
	"Operation failed: Error during operation: the divisor is 0: write max(1, …)",
	`Error in function call: Call to function "regex" failed: no part of the string matches`,
	`Error in function call: Call to function "try" failed: no expression succeeded`,
	"Unusable value ",
}

var undecided = regexp.MustCompile(`^this site's policy cannot decide: p:[0-9]+:[0-9]+: (.*): tell the site's admins$`)

// checkDenial checks the sentence of a rule that fails for a job. The sentence can be printed and names the place.
// Its cause is one of the failures above.
func checkDenial(t *testing.T, denied string) {
	t.Helper()
	if strings.ContainsFunc(denied, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(denied) > 1000 {
		t.Errorf("a denial that breaks a log: %q", denied)
	}
	if !strings.Contains(denied, "policy cannot decide") {
		return
	}
	found := undecided.FindStringSubmatch(denied)
	if found == nil || !slices.ContainsFunc(failures, func(f string) bool { return strings.HasPrefix(found[1], f) }) {
		t.Errorf("a failure that a loaded policy must not have: %s", denied)
	}
}

// BenchmarkDecide decides by the last of 200 rules. In the other rules the first operand is false, or the last
// operand is.
func BenchmarkDecide(b *testing.B) {
	b.Run("first", func(b *testing.B) {
		benchmarkDecide(b, `job.partition == "p%d" && contains(job.requested, "mps") && length(job.gpus) > 1`)
	})
	b.Run("last", func(b *testing.B) {
		benchmarkDecide(b, `contains(job.requested, "mps") && length(job.gpus) > 1 && job.partition == "p%d"`)
	})
}

// rules200 is a policy whose rules have a condition with a number in it.
func rules200(when string) []byte {
	var source strings.Builder
	source.WriteString("version = 1\n")
	for i := range 200 {
		fmt.Fprintf(&source, "rule \"r%d\" {\n  when = "+when+"\n  grant {}\n}\n", i, i)
	}
	return []byte(source.String())
}

func benchmarkDecide(b *testing.B, when string) {
	compiled, err := Parse(rules200(when), "p")
	if err != nil {
		b.Fatal(err)
	}
	request := policy.Request{Job: policy.Job{Partition: "p199", Requested: []string{"mps"}, GPUs: []int{0, 1}}}
	for b.Loop() {
		if verdict := compiled.Policy().Decide(request); !verdict.Granted() || verdict.Rule != "r199" {
			b.Fatal(verdict)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	shipped, err := os.ReadFile("../../site/etc/policy.hcl")
	if err != nil {
		b.Fatal(err)
	}
	for name, source := range map[string][]byte{"shipped": shipped, "200 rules": rules200(`job.partition == "p%d" && length(job.gpus) > 1`)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Parse(source, "p"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// oddRequests are requests that every policy must decide without a failure of the program.
var oddRequests = []policy.Request{
	{},
	{
		Job: policy.Job{
			ID: math.MaxUint32, User: "\xff\xfe", UID: math.MaxUint32, Comment: strings.Repeat("\x00a\u0301", 5000),
			Requested: []string{"", "mps", "\xc3\x28"}, Option: "${job.user}", HasOption: true, GPUs: []int{-1, 1 << 40, 0},
			NTasks: math.MaxInt64, Nodes: math.MinInt64, Restart: -1, Node: "\u2028",
		},
		Groups: []string{""}, Features: []string{"mps"}, NodeGPUs: -5, Driver: "%!s", GPU: policy.GPUFacts{Product: "\x7f", SMs: -1, MemoryMiB: math.MaxInt64, MIG: true},
	},
}
