// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The shipped files are in HCL's own form.
func TestFormOfTheShippedFiles(t *testing.T) {
	for _, path := range []string{"../../site/etc/policy.hcl", "../../site/etc/site.hcl"} {
		source, err := os.ReadFile(path)
		must.OK(t, err)
		if formatted := hclwrite.Format(source); string(formatted) != string(source) {
			t.Errorf("%s is not in hcl's own form:\n%s", path, formatted)
		}
	}
}

// A factor from an expression may have more decimals than a user may write. For example, 4/3 can be planned too.
func TestAPlacementOfAFactorWithoutEnd(t *testing.T) {
	var a answer
	a.Verdict = policy.Decision{Requested: true, Grant: policy.DefaultGrant()}
	a.Verdict.Grant.MemoryOverlap, a.Verdict.Grant.Share = 4.0/3, policy.Overlap(4.0/3)
	if err := (query{gpu: "H200", ranks: 4}).place(&a, policy.Request{}); err != nil || len(a.Ranks) != 4 {
		t.Errorf("%d ranks, %v", len(a.Ranks), err)
	}
}

// A placement puts as many ranks on a GPU as MPS serves with the driver, or 48 if no driver is known.
func TestAPlacementHasTheClientsOfTheDriver(t *testing.T) {
	var a answer
	a.Verdict = policy.Decision{Requested: true, Grant: policy.DefaultGrant()}
	q := query{gpu: "H200", ranks: 60}
	if err := q.place(&a, policy.Request{Driver: "590.44.01"}); err != nil || len(a.Ranks) != 60 {
		t.Errorf("driver 590: %d ranks, %v", len(a.Ranks), err)
	}
	if err := q.place(&a, policy.Request{}); err == nil || !strings.Contains(err.Error(), "MPS serves 48 at once") {
		t.Errorf("no driver: %v", err)
	}
}

// The ranks of a job of this node are placed on the GPUs that it has, and not on the number that a flag gives.
func TestExplainPlacesOnTheJobsGPUs(t *testing.T) {
	var a answer
	a.Verdict = policy.Decision{Requested: true, Grant: policy.DefaultGrant()}
	q := query{job: 7, gpu: "H200", gpus: 1, ranks: 8}
	if err := q.place(&a, policy.Request{Job: policy.Job{GPUs: []int{2, 3, 5, 7}}}); err != nil || a.Ranks[7].GPU != 3 {
		t.Errorf("%v, %v", a.Ranks, err)
	}
}

// explain looks up what the policy asks about, or takes it from the flags. Otherwise it prints what it assumed.
func TestExplainSaysWhatItAssumes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.hcl")
	source := `version = 1
trigger {
  constraint = "mps"
}
rule "students" {
  when = contains(job.groups, "root") && job.uid == 0
  grant { share = "25%" }
}
rule "rest" {
  when = !gpu.mig && contains(node.features, "a") || node.driver == "1" || node.gpus == 3
  grant { memory = gpu.model == "H200" ? "16G" : "8G" }
}
`
	must.OK(t, os.WriteFile(file, []byte(source), 0o600))
	const others = "! node.features is taken as []: give --features\n! node.driver is taken as \"\": give --driver\n! node.gpus is taken as 1, the job's GPUs: no flag gives a number\n"
	for _, c := range []struct {
		args string
		want []string // in the answer
		not  string
	}{
		{"--user root --gpu H200",
			[]string{`Granted by rule "students"`, "share          = 25%\n", "ceiling        = 100                default\n", "\n\n" + others}, "job.groups is taken"},
		{"--user nobody-knows-me",
			[]string{"\n! cannot look up user \"nobody-knows-me\": user: unknown user nobody-knows-me: give --groups\n! job.groups is taken as []: give --user or --groups\n"}, "students\" decides"},
		{"--groups root --features a --gpu H200", []string{`Granted by rule "students"`}, "job.groups is taken"},
		{"--groups none --features a --gpu H200",
			[]string{`Granted by rule "rest"`, "memory         = 16384M             gpu.model = \"H200\"\n"}, "features is taken"},
		{"--groups none", []string{"! gpu.model and gpu.product are taken as \"\", gpu.sms and gpu.memory as 0: give --gpu\n"}, ""},
	} {
		code, out, complaint := runRoot(policyCommand, strings.Fields("policy explain --constraint mps --policy "+file+" "+c.args)...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: code %d, %s: no %q in\n%s", c.args, code, complaint, want, out)
			}
		}
		if c.not != "" && strings.Contains(out, c.not) {
			t.Errorf("%s: %q in\n%s", c.args, c.not, out)
		}
	}
	if code, _, complaint := runRoot(policyCommand, "policy", "explain", "--policy", file, "--mps",
		"share=even"); code != 2 || !strings.Contains(complaint, "write --mps=share=even") {
		t.Errorf("a value apart from --mps: code %d: %s", code, complaint)
	}
}

// The partitions that exist are those of slurm.conf. If there is none to read, each name may exist.
func TestPartitionsThatDoNotExist(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	must.OK(t, os.WriteFile(conf, []byte("PartitionName=DEFAULT State=UP\nPartitionName=main Nodes=n1\n"), 0o600))
	for _, c := range []struct{ conf, variable, name, want string }{
		{conf, "job.partition", "mian", conf + ` has no partition "mian": it has main`},
		{conf, "job.partition", "main", ""},
		{conf, "job.qos", "mian", ""},
		{conf, "job.groups", "root", ""},
		{conf + "x", "job.partition", "mian", ""},
	} {
		if got := missing(c.conf)(c.variable, c.name); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.variable, c.name, got, c.want)
		}
	}
}
