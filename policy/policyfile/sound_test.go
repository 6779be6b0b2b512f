// SPDX-License-Identifier: Apache-2.0

package policyfile_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/lint"
	. "github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// kind is a type of an expression that the author writes.
type kind int

const (
	number kind = iota
	text
	boolean
	list
)

// author writes random expressions. Most have the right kinds, so that many of them load.
type author struct {
	*rand.Rand
	depth int
	loop  bool
}

func (a *author) pick(words ...string) string { return words[a.IntN(len(words))] }

func (a *author) deeper() bool { return a.depth < 4 && a.IntN(3) > 0 }

// of writes an expression of a kind.
func (a *author) of(k kind) string {
	a.depth++
	defer func() { a.depth-- }()
	if a.IntN(60) == 0 { // sometimes a wrong kind
		k = []kind{number, text, boolean, list}[a.IntN(4)]
	}
	if a.IntN(8) == 0 && k != list {
		return fmt.Sprintf("(%s ? %s : %s)", a.of(boolean), a.of(k), a.of(k))
	}
	if a.IntN(8) == 0 {
		if a.IntN(8) == 0 {
			return fmt.Sprintf("try(%s, %s)", a.risky(k), a.risky(k))
		}
		return fmt.Sprintf("try(%s, %s)", a.risky(k), a.of(k))
	}
	switch k {
	case number:
		return a.number()
	case text:
		return a.text()
	case boolean:
		return a.boolean()
	}
	return a.list()
}

// risky writes an expression that may fail for a job.
func (a *author) risky(k kind) string {
	switch k {
	case number:
		return a.pick("job.gpus[0]", "job.gpus[job.restart]", "[1, 2][job.ntasks]", "local.limit[job.account]",
			"[for g in job.gpus : g if g > 3][0]", "local.positions[1]")
	case text:
		return a.pick(`regex("[a-z]+", job.comment)`, "job.requested[1]", `regex("^$", job.user)`, "node.features[job.uid]")
	}
	return a.of(k)
}

func (a *author) number() string {
	if !a.deeper() {
		words := []string{"0", "1", "2", "48", "100", "0.1", "1e15", "0.5", "job.id", "job.uid", "job.ntasks",
			"job.restart", "gpu.memory", "node.gpus", "local.five", "local.big", "-3"}
		if a.loop {
			words = append(words, "x", "i")
		}
		return a.pick(words...)
	}
	switch a.IntN(7) {
	case 0:
		return fmt.Sprintf("(%s %s %s)", a.of(number), a.pick("+", "-", "*", "/", "%"), a.of(number))
	case 1:
		return fmt.Sprintf("(%s %s max(1, %s))", a.of(number), a.pick("/", "%"), a.of(number))
	case 2:
		return fmt.Sprintf("%s(%s)", a.pick("floor", "ceil", "-"), a.of(number))
	case 3:
		return fmt.Sprintf("%s(%s, %s)", a.pick("min", "max"), a.of(number), a.of(number))
	case 4:
		return fmt.Sprintf("length(%s)", a.of([]kind{list, text}[a.IntN(2)]))
	case 5:
		return fmt.Sprintf("lookup(local.limit, %s, %s)", a.of(text), a.of(number))
	}
	return fmt.Sprintf("min(48, max(1, %s))", a.of(number))
}

func (a *author) text() string {
	if !a.deeper() {
		return a.pick(`""`, `"even"`, `"none"`, `"job"`, `"10s"`, "job.user", "job.comment", "gpu.model", "node.driver", "local.name", `"ä\n"`)
	}
	switch a.IntN(4) {
	case 0:
		return fmt.Sprintf("%s(%s)", a.pick("lower", "upper"), a.of(text))
	case 1:
		return fmt.Sprintf(`"%s${%s}"`, a.pick("", "x", "µ"), a.of([]kind{text, number, boolean}[a.IntN(3)]))
	case 2:
		return fmt.Sprintf("coalesce(%s, %s)", a.of(text), a.of(text))
	}
	return fmt.Sprintf(`join(",", %s)`, a.pick("job.requested", `["a", "b"]`, fmt.Sprintf("[%s, %s]", a.of(text), a.of(text))))
}

func (a *author) boolean() string {
	if !a.deeper() {
		return a.pick("true", "false", "gpu.mig", "local.large", "can(job.gpus[3])", `can(regex("x", job.comment))`)
	}
	switch a.IntN(6) {
	case 0:
		return fmt.Sprintf("(%s %s %s)", a.of(boolean), a.pick("&&", "||"), a.of(boolean))
	case 1:
		return "!" + a.of(boolean)
	case 2:
		return fmt.Sprintf("(%s %s %s)", a.of(number), a.pick("<", ">", "<=", ">=", "==", "!="), a.of(number))
	case 3:
		return fmt.Sprintf("%s(%s, %s)", a.pick("startswith", "endswith", "strcontains"), a.of(text), a.of(text))
	case 4:
		return fmt.Sprintf("contains(%s, %s)", a.of(list), a.of(number))
	}
	return fmt.Sprintf("(%s == %s)", a.of(text), a.of(text))
}

func (a *author) list() string {
	if a.loop || a.IntN(2) == 0 {
		return a.pick("job.gpus", "[]", "[1, 2, 3]", fmt.Sprintf("[%s, %s]", a.of(number), a.of(number)), "local.positions")
	}
	from := a.of(list)
	a.loop = true
	defer func() { a.loop = false }()
	condition := ""
	if a.IntN(2) == 0 {
		condition = " if " + a.of(boolean)
	}
	return fmt.Sprintf("[for i, x in %s : %s%s]", from, a.of(number), condition)
}

func (a *author) policy() string {
	attributes := ""
	for _, row := range policy.Attributes() {
		if a.IntN(4) == 0 {
			attributes += fmt.Sprintf("    %s = %s\n", row.Name, a.value(row))
		}
	}
	return fmt.Sprintf(`version = 1
trigger {
  option = true
}
locals {
  five      = 5
  big       = job.ntasks * 3
  name      = "${job.user}@${node.name}"
  large     = length(job.gpus) > local.five || local.big > 9
  limit     = { chem = 4, phys = job.nodes }
  positions = [for g in job.gpus : g + 1]
}
rule "deny" {
  when = %s
  deny = "no: ${%s}"
}
rule "grant" {
  when = %s
  grant {
%s  }
}
rule "all" {
  when = true
  grant {}
}
`, a.of(boolean), a.of(text), a.of(boolean), attributes)
}

// value writes an expression for an attribute of a grant. Its value is possible, except for some numbers.
func (a *author) value(row policy.Attribute) string {
	switch row.Kind {
	case policy.Count:
		return fmt.Sprintf("min(%v, max(%v, floor(%s)))", row.Highest, row.Lowest, a.of(number))
	case policy.Number:
		if a.IntN(3) == 0 {
			return a.of(number)
		}
		highest := a.pick("48", "40 + 8", "3 * 16")
		return fmt.Sprintf("min(%s, max(%v, %s))", highest, row.Lowest, a.of(number))
	}
	words := row.Words
	switch {
	case row.Kind == policy.Duration:
		words = []string{"1s", row.Longest.String()}
	case row.Name == "share":
		words = []string{"even", "none"}
	case row.Name == "memory":
		words = []string{"8G", "even"}
	}
	return fmt.Sprintf("%s ? %q : lower(%q)", a.of(boolean), words[0], words[len(words)-1])
}

func (a *author) request() policy.Request {
	word := func() string {
		if a.IntN(4) == 0 {
			bytes := make([]byte, a.IntN(40))
			for i := range bytes {
				bytes[i] = byte(a.IntN(256))
			}
			return string(bytes)
		}
		return a.pick("", "even", "none", "chem", "phys", "anna", "0", "-1", "null", "true", "${job.user}", "a\u0301", strings.Repeat("x", 5000), "\x00")
	}
	count := func() int {
		return []int{0, 1, 2, 47, 48, 49, -1, math.MaxInt64, math.MinInt64, a.IntN(1000)}[a.IntN(10)]
	}
	words := func() (all []string) {
		for range a.IntN(4) {
			all = append(all, word())
		}
		return all
	}
	r := policy.Request{
		Job: policy.Job{
			ID: a.Uint32(), User: word(), UID: a.Uint32N(3), GID: a.Uint32(), Account: word(), Partition: word(), QOS: word(),
			Reservation: word(), Comment: word(), Requested: words(), HasOption: true, NTasks: count(), Nodes: count(),
			Array: a.Uint32N(2), Restart: count(), Node: word(),
		},
		Groups: words(), Features: words(), NodeGPUs: count(), Driver: word(),
		GPU: policy.GPUFacts{Product: word(), SMs: count(), MemoryMiB: count(), MIG: a.IntN(2) == 0},
	}
	for range a.IntN(5) {
		r.GPUs = append(r.GPUs, count())
	}
	return r
}

// A policy that loads decides every job, or denies it with a sentence. What it grants is in range.
func TestWhatLoadsNeverFails(t *testing.T) {
	seed := uint64(1)
	if given, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = given
	}
	a := &author{Rand: rand.New(rand.NewPCG(seed, 2))}
	var policies []*Compiled
	var sources []string
	take := func(source string) {
		if compiled, err := Parse([]byte(source), "p"); err == nil {
			policies, sources = append(policies, compiled), append(sources, source)
		}
	}
	cases := readCorpus(t)
	for _, name := range cases.Names() {
		if strings.HasPrefix(name, "good-") {
			source, _, _ := strings.Cut(cases.Files[name], "=== ")
			take(source)
		}
	}
	shipped := must.Get(os.ReadFile("../../site/etc/policy.hcl"))(t)
	take(string(shipped))
	const tried = 500
	for range tried {
		take(a.policy())
	}
	must.Have(t, len(policies) >= tried/4, "only %d of %d policies load: the test tries too little", len(policies), tried)
	t.Logf("%d of %d policies load", len(policies), tried)
	granted, denied, failed := 0, 0, 0
	for i, compiled := range policies {
		for range 12 {
			r := a.request()
			verdict := compiled.Policy().Decide(r)
			checkDenial(t, verdict.Denied)
			if strings.Contains(verdict.Denied, "cannot decide") {
				failed++
			}
			if t.Failed() {
				t.Fatalf("%+v in\n%s", r, sources[i])
			}
			if verdict.Granted() {
				granted++
				holdsRange(t, verdict.Grant, sources[i])
			} else if verdict.Denied != "" {
				denied++
			}
			explained := lint.Explain(compiled, r)
			if len(explained.Rules) > 0 && explained.Verdict.Rule != "" && explained.Rules[len(explained.Rules)-1].Rule != verdict.Rule {
				t.Fatalf("explained by %q, decided by %q in\n%s", explained.Rules[len(explained.Rules)-1].Rule, verdict.Rule, sources[i])
			}
		}
	}
	t.Logf("%d granted, %d denied, %d of them because a rule fails", granted, denied, failed)
	must.Hold(t, granted >= 100 && denied >= 100 && failed >= 30,
		"%d granted, %d denied, %d failed: the test tries too little", granted, denied, failed)
}

// holdsRange checks that a grant has a value of the table for each attribute, and numbers in the ranges of MPS, which are
// written here a second time.
func holdsRange(t *testing.T, g policy.Grant, source string) {
	t.Helper()
	for _, setting := range g.Settings() {
		if _, err := policy.ReadGrant(map[string]string{setting.Name: setting.Value}); err != nil {
			t.Fatalf("out of range: %v in\n%s", err, source)
		}
	}
	ok := g.Ceiling >= 1 && g.Ceiling <= 100 && g.MemoryOverlap >= 1 &&
		g.MemoryOverlap <= 48 && g.MaxClients >= 1 && g.MaxClients <= 60 && g.DrainGrace >= 0 && g.DrainGrace <= 10*time.Minute
	must.Have(t, ok, "out of range: %+v in\n%s", g, source)
}
