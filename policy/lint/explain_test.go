// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func parsed(t *testing.T, source string) *policyfile.Compiled {
	t.Helper()
	compiled, err := policyfile.Parse([]byte(source), "policy.hcl")
	must.OK(t, err)
	return compiled
}

// shown is an explanation as lines of text.
func shown(x Explanation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %s\n", x.Asked, x.How)
	for _, r := range x.Rules {
		fmt.Fprintf(&b, "%s:%d %s %v\n", r.File, r.Line, r.Rule, r.Holds)
		showPart(&b, r.When, "  ")
	}
	fmt.Fprintf(&b, "-> %s\n", decision(x.Verdict))
	return b.String()
}

func showPart(b *strings.Builder, p conditionTrace, indent string) {
	if p.Op != "" {
		fmt.Fprintf(b, "%s%s is %s\n", indent, p.Op, p.Value)
	} else {
		fmt.Fprintf(b, "%s%s is %s %v\n", indent, p.Source, p.Value, p.With)
	}
	for _, part := range p.Parts {
		showPart(b, part, indent+"  ")
	}
}

func TestExplain(t *testing.T) {
	compiled := parsed(t, `version = 1
trigger {
  constraint = "mps"
  comment    = "mps"
}
locals {
  large = length(job.gpus) > 2
}
rule "teaching" {
  when = job.partition == "edu" && length(job.gpus) > 1
  deny = "one GPU at a time"
}
rule "odd" {
  when = !(job.user == "root"  ||
    local.large) && (job.uid < 1000 || job.comment == "a  b")
  deny = "x"
}
rule "rest" {
  when  = true
  allow = ["share"]
  grant {}
}`)
	x := Explain(compiled, policy.Request{Job: policy.Job{Requested: []string{"mps"}, Partition: "gpu", GPUs: []int{0, 1}, User: "anna", UID: 2001, Comment: "mps:share=even"}})
	want := `true: --constraint names "mps"
policy.hcl:9 teaching false
  && is false
    job.partition == "edu" is false [{job.partition "gpu"}]
    length(job.gpus) > 1 is true [{job.gpus [0, 1]}]
policy.hcl:13 odd false
  && is false
    ! is true
      || is false
        job.user == "root" is false [{job.user "anna"}]
        local.large is false [{local.large false}]
    || is false
      job.uid < 1000 is false [{job.uid 2001}]
      job.comment == "a  b" is false [{job.comment "mps:share=even"}]
policy.hcl:18 rest true
  true is true []
-> rule "rest": granted share=even
`
	if got := shown(x); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if len(x.Grant) == 0 || x.Options.String() != "share=even" {
		t.Errorf("grant %v, options %v", x.Grant, x.Options)
	}
	if leaves := x.Rules[1].When.Leaves(); len(leaves) != 4 || leaves[2].Source != "job.uid < 1000" {
		t.Errorf("leaves %+v", leaves)
	}
	if whole := x.Rules[1].When.Source; whole != `!(job.user == "root"  || local.large) && (job.uid < 1000 || job.comment == "a  b")` {
		t.Errorf("a condition over two lines is %q", whole)
	}
	if content, err := json.Marshal(x); err != nil || !strings.Contains(string(content), `"asked":true`) {
		t.Errorf("%s, %v", content, err)
	}
	if got, want := shown(Explain(compiled, policy.Request{Job: policy.Job{User: "anna"}})), "false: it would by --constraint=mps or --comment=mps\n-> not asked\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Each attribute has the variables from which it was computed, and reports whether it is the default.
func TestExplainTheGrant(t *testing.T) {
	compiled := parsed(t, `version = 1
trigger {
  constraint = "mps"
}
locals {
  sizes = { chem = "16G" }
}
defaults {
  on_failure = "run_without"
}
rule "r" {
  when  = true
  allow = ["ceiling"]
  grant {
    memory      = gpu.model == "H200" ? lookup(local.sizes, job.account, "4G") : "8G"
    max_clients = 4 * length(job.gpus)
    priority    = "normal"
    hold        = "5s"
  }
}`)
	x := Explain(compiled, policy.Request{Job: policy.Job{Requested: []string{"mps"}, Account: "chem", GPUs: []int{0, 1}}, GPU: policy.GPUFacts{Product: "NVIDIA H200"}})
	want := map[string]string{
		"memory": `16384M [{gpu.model "H200"} {local.sizes {chem = "16G"}} {job.account "chem"}] false`, "max_clients": "8 [{job.gpus [0, 1]}] false",
		"priority": "normal [] true", "hold": "5s [] false", "on_failure": "run_without [] false", "share": "overlap:2 [] true",
	}
	for _, a := range x.Grant {
		if got := fmt.Sprint(a.Value, " ", a.With, " ", a.Default); want[a.Name] != "" && got != want[a.Name] {
			t.Errorf("%s is %s, want %s", a.Name, got, want[a.Name])
		}
		delete(want, a.Name)
	}
	if len(want) > 0 || len(x.Grant) != len(policy.Attributes()) {
		t.Errorf("%d attributes, and not %v", len(x.Grant), want)
	}
}

// If a rule fails, it is the last rule in the explanation, with the cause in the place of its value.
func TestExplainARuleThatFails(t *testing.T) {
	compiled := parsed(t, `version = 1
rule "first" {
  when = job.uid > 5 && job.gpus[0] == 0
  grant {}
}
rule "rest" {
  when = true
  grant {}
}`)
	want := `true: the policy has no trigger: its rules alone decide
policy.hcl:2 first false
  && is policy.hcl:3:33: Invalid index: there is no such element: write try(…, DEFAULT)
    job.uid > 5 is true [{job.uid 6}]
    job.gpus[0] == 0 is policy.hcl:3:33: Invalid index: there is no such element: write try(…, DEFAULT) [{job.gpus []}]
-> rule "first": denied: this site's policy cannot decide: policy.hcl:3:33: Invalid index: there is no such element: write try(…, DEFAULT): tell the site's admins
`
	if got := shown(Explain(compiled, policy.Request{Job: policy.Job{UID: 6}})); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// An explanation is short and can be printed, even if a user's text is long or odd.
func TestExplainIsBounded(t *testing.T) {
	compiled := parsed(t, "version = 1\nrule \"r\" {\n  when = job.comment == \"\" || contains(job.requested, \"x\") || contains(job.gpus, 7)\n  grant {}\n}\n")
	r := policy.Request{Job: policy.Job{Comment: strings.Repeat("\x1b\n", 3000)}}
	for i := range 300 {
		r.Requested, r.GPUs = append(r.Requested, fmt.Sprint("name", i)), append(r.GPUs, 1000-i)
	}
	for _, leaf := range Explain(compiled, r).Rules[0].When.Leaves() {
		for _, named := range leaf.With {
			if len(named.Value) > 1000 || strings.ContainsAny(named.Value, "\x1b\n") {
				t.Errorf("%s is %d bytes: %q", named.Name, len(named.Value), named.Value)
			}
			if named.Name != "job.comment" && !strings.HasSuffix(named.Value, " more]") {
				t.Errorf("%s is cut without a mark: %q", named.Name, named.Value)
			}
		}
	}
}

// Two leaves that differ only in a blank within a string are different leaves.
func TestLeavesOfOneWording(t *testing.T) {
	compiled := parsed(t, `version = 1
rule "two" {
  when = job.comment == "a  b"
  grant {}
}
rule "one" {
  when = job.comment == "a b"
  grant {}
}`)
	for comment, want := range map[string]string{"a b": "one", "a  b": "two"} {
		if verdict := compiled.Policy().Decide(policy.Request{Job: policy.Job{Comment: comment}}); verdict.Rule != want {
			t.Errorf("%q: rule %q, want %q", comment, verdict.Rule, want)
		}
	}
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

// A rule that denies is for every job if the policy has no trigger. Only a condition that may depend on how the job
// asks makes it harmless.
func TestADenialOfJobsThatDoNotAsk(t *testing.T) {
	const trigger = "trigger {\n  constraint = \"mps\"\n}\n"
	for text, want := range map[string]int{
		"when = job.partition == \"edu\"\n  deny = \"no\"":                                             1,
		"when = true\n  deny = \"no\"":                                                                 1,
		"when = job.partition == \"edu\"\n  grant {}":                                                  0,
		"when = contains(job.requested, \"mps\") && job.partition == \"edu\"\n  deny = \"no\"":         0,
		"when = startswith(job.comment, \"mps\") || job.option != \"\"\n  deny = \"no\"":               0,
		"when = local.asked\n  deny = \"no\"\n}\nlocals {\n  asked = contains(job.requested, \"mps\")": 0,
	} {
		rule := "rule \"r\" {\n  " + text + "\n}\n"
		found := Warnings(parsed(t, "version = 1\n"+rule), noneMissing)
		if len(found) != want || want > 0 && (found[0].Line != 2 || !found[0].Warning) {
			t.Errorf("without a trigger, %s: %+v", text, found)
		}
		if found := Warnings(parsed(t, "version = 1\n"+trigger+rule), noneMissing); len(found) > 0 {
			t.Errorf("with a trigger, %s: %+v", text, found)
		}
	}
}

func noneMissing(string, string) string { return "" }
