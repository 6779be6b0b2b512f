// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// explained is the JSON output of explain, as the documentation describes it.
type explained struct {
	Asked   bool `json:"asked"`
	Verdict struct {
		Rule   string
		Denied string
	} `json:"verdict"`
	Grant []struct{ Name, Value string } `json:"grant"`
	Rules []struct {
		Rule  string `json:"rule"`
		Holds bool   `json:"holds"`
	} `json:"rules"`
	Decided string `json:"decided"`
	Ranks   []struct {
		Rank, GPU, SMs int
	} `json:"ranks"`
}

func (p testNode) explained(args ...string) explained {
	p.T.Helper()
	result := p.Ctl(append([]string{"policy", "explain", "--json"}, args...)...)
	var x explained
	if err := json.Unmarshal([]byte(result.Output), &x); err != nil || result.Code != 0 {
		p.T.Fatalf("code %d, %v: %s", result.Code, err, result.Output)
	}
	return x
}

// explain gives a described job the same rule, or the same reason of denial, as the prolog gives a real job.
func TestExplainAgreesWithTheProlog(t *testing.T) {
	p := newTestNode(t, testnode.Teaching, node.H200, node.H200)
	for i, c := range []struct {
		gpus                       string
		partition, account, mps    string
		rule, denied, scope, share string
	}{
		{"0,1", "edu", "", "", "teaching", "MPS on the edu partition is for one GPU at a time", "", ""},
		{"0", "edu", "", "", "all", "", "job", "overlap:2"},
		{"0,1", "gpu", "chem-a", "", "chemistry", "", "gpu", "overlap:3"},
		{"1", "gpu", "chem-a", "share=even,ceiling=50", "chemistry", "", "gpu", "even"},
		{"1", "gpu", "chem-a", "scope=job", "chemistry", "cannot take scope=job: this site's policy lets this job set share, ceiling alone", "", ""},
		{"0,1", "gpu", "bio", "", "all", "", "job", "overlap:2"},
	} {
		job := p.Job(uint32(20+i), c.gpus)
		job.Extra = append(job.Extra, "SLURM_JOB_PARTITION="+c.partition, "SLURM_JOB_ACCOUNT="+c.account)
		args := []string{"--partition", c.partition, "--account", c.account, "--constraint", "mps", "--gpus", fmt.Sprint(strings.Count(c.gpus, ",") + 1)}
		if c.mps != "" {
			job.Extra = append(job.Extra, "SPANK_MPS="+c.mps)
			args = append(args, "--mps="+c.mps)
		}
		p.Must(0, job, "prolog")
		x, ticket := p.explained(args...), p.Ticket(job.ID)
		if x.Verdict.Rule != c.rule || !strings.Contains(x.Verdict.Denied, c.denied) || (c.denied == "") != (x.Verdict.Denied == "") {
			t.Errorf("%d: explained as %+v, want rule %q, denied %q", i, x.Verdict, c.rule, c.denied)
		}
		if ticket.Rule != x.Verdict.Rule || ticket.RefusalReason != x.Verdict.Denied {
			t.Errorf("%d: the prolog has rule %q, refused %q; explain has %+v", i, ticket.Rule, ticket.RefusalReason, x.Verdict)
		}
		for _, setting := range x.Grant {
			if want := map[string]string{"scope": c.scope, "share": c.share}[setting.Name]; want != "" && setting.Value != want {
				t.Errorf("%d: %s is %s, want %s", i, setting.Name, setting.Value, want)
			}
		}
		p.Must(0, job, "epilog")
	}
	p.Clean()
}

// explain decides about a job of this node from what its prolog saw. If the policy has changed since, explain reports
// that.
func TestExplainAJobOfTheNode(t *testing.T) {
	p := newTestNode(t, testnode.Teaching, node.H200)
	job := p.Job(7, "0")
	job.Extra = append(job.Extra, "SLURM_JOB_ACCOUNT=chem-a")
	p.Must(0, job, "prolog")
	if x := p.explained("--job", "7"); x.Verdict.Rule != "chemistry" || x.Decided != "chemistry" || len(x.Rules) != 2 || x.Rules[0].Holds {
		t.Errorf("%+v", x)
	}
	p.Write(p.Paths().Policy(), strings.Replace(testnode.Teaching, `"chem"`, `"physics"`, 1))
	result := p.Ctl("policy", "explain", "--job", "7")
	want := `! its prolog decided by rule "chemistry": the policy has changed since.`
	if result.Code != 0 || !strings.Contains(result.Output, want) ||
		!strings.Contains(result.Output, `startswith(job.account, "physics")`) || !strings.Contains(result.Output, `job.account = "chem-a"`) {
		t.Errorf("code %d: %s", result.Code, result.Output)
	}
	p.Must(0, job, "epilog")
	result = p.Ctl("policy", "explain", "--job", "7")
	if want := "mpsctl: cannot explain job 7: it has no MPS on this node, or it has ended: describe it with flags\n"; result.Code != 1 || result.Output != want {
		t.Errorf("code %d: %s", result.Code, result.Output)
	}
	p.Clean()
}

// policy apply installs a whole policy or nothing, after the policy's own tests. It prints the difference.
func TestPolicyApply(t *testing.T) {
	p := newTestNode(t, testnode.Teaching, node.H200)
	dir := t.TempDir()
	file := filepath.Join(dir, "new.hcl")
	besideNew := filepath.Join(dir, "policy_test.hcl")
	apply := func(code int, policy, cases string) string {
		t.Helper()
		p.Write(file, policy)
		p.Write(besideNew, cases)
		if cases == "" {
			must.OK(t, os.Remove(filepath.Join(dir, "policy_test.hcl")))
		}
		result := p.Ctl("policy", "apply", file)
		if result.Code != code {
			t.Fatalf("code %d, want %d: %s", result.Code, code, result.Output)
		}
		return result.Output
	}
	same := func(want string, files int) {
		t.Helper()
		if got := e2e.Read(t, p.Paths().Policy()); got != want {
			t.Errorf("policy.hcl is\n%s", got)
		}
		if names, err := os.ReadDir(filepath.Dir(p.Paths().Policy())); err != nil || len(names) != files {
			t.Errorf("beside it: %v, %v", names, err)
		}
	}
	if out := apply(1, testnode.Teaching+"rule \"x\" {", ""); !strings.Contains(out, file+" line 26") {
		t.Errorf("broken: %s", out)
	}
	same(testnode.Teaching, 2)
	const later = `version = 1

trigger {
  constraint = "mps"
}

rule "all" {
  when = true
  grant {
    memory = "even"
  }
}

rule "chemistry" {
  when  = startswith(job.account, "chem")
  allow = ["share", "ceiling"]
  grant {
    scope = "gpu"
    share = "overlap:4"
  }
}

rule "new" {
  when = false
  deny = "no"
}
`
	const cases = "version = 1\ncase \"a\" {\n  job {\n    requested = [\"mps\"]\n  }\n  expect {\n    rule = \"RULE\"\n  }\n}\n"
	if out := apply(1, later, strings.Replace(cases, "RULE", "chemistry", 1)); !strings.Contains(out, `FAIL `) || !strings.Contains(out, "Nothing has changed") {
		t.Errorf("a case that fails: %s", out)
	}
	same(testnode.Teaching, 2)
	must.OK(t, os.Chmod(p.Paths().Policy(), 0o640))
	changed := "--- " + p.Paths().Policy() + "\n+++ " + file + "\n@@ -2,12 +2,13 @@\n"
	if result := p.Ctl("policy", "apply", "--dry-run", file); result.Code != 1 {
		t.Errorf("a dry run with a case that fails: %+v", result)
	}
	p.Write(filepath.Join(dir, "policy_test.hcl"), strings.Replace(cases, "RULE", "all", 1))
	if result := p.Ctl("policy", "apply", "--dry-run", file); result.Code != 0 || !strings.HasPrefix(result.Output, changed) ||
		!strings.HasSuffix(result.Output, "\nNothing has changed: "+p.Paths().Policy()+" stays as it is.\n") {
		t.Errorf("a dry run: %+v", result)
	}
	same(testnode.Teaching, 2)
	out := apply(0, later, strings.Replace(cases, "RULE", "all", 1))
	for _, line := range []string{
		"\n-  grant {}\n", "\n+rule \"new\" {\n", "\n+    share = \"overlap:4\"\n", "\n   constraint = \"mps\"\n",
		"\nok   " + besideNew + ":2: case \"a\"\n1 case passed, 0 failed\n",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("there is no %q in\n%s", line, out)
		}
	}
	now, back, _ := strings.Cut(out, "To go back: mpsctl ")
	isNow := "\n" + p.Paths().Policy() + " is the policy now: the next job has it\n"
	if !strings.HasPrefix(out, changed) || !strings.HasSuffix(now, isNow) {
		t.Errorf("apply prints\n%s", out)
	}
	if strings.Count(out, "Warning: Never tried") != 2 {
		t.Errorf("there is no warning of the two rules after the rule for every job:\n%s", out)
	}
	same(later, 4)
	if got := e2e.Read(t, filepath.Join(filepath.Dir(p.Paths().Policy()), "policy_test.hcl")); got != strings.Replace(cases, "RULE", "all", 1) {
		t.Errorf("the policy's cases were not installed with it: %s", got)
	}
	const passed = ":2: case \"a\"\n1 case passed, 0 failed\n"
	if result := p.Ctl("policy", "test"); result.Code != 0 || !strings.HasSuffix(result.Output, passed) {
		t.Errorf("the node's own cases: %+v", result)
	}
	if info, err := os.Stat(p.Paths().Policy()); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	const none = "No line changes.\nNo case was run: policy_test.hcl beside the policy has the cases.\n"
	if out := apply(0, later, ""); !strings.HasPrefix(out, none) || strings.Contains(out, "To go back") {
		t.Errorf("again: %s", out)
	}
	if result := p.Ctl(strings.Fields(back)...); result.Code != 0 {
		t.Errorf("%s: %+v", back, result)
	}
	same(testnode.Teaching, 4)
	// apply replaces a broken policy. From then on the copy of the new policy is used if the policy breaks.
	p.Write(p.Paths().Policy(), "rubbish {")
	if out := apply(0, later, ""); strings.Contains(out, "To go back") {
		t.Errorf("a broken policy is a way back: %s", out)
	}
	p.Write(p.Paths().Policy(), "rubbish {")
	p.Must(0, p.Job(7, "0"), "prolog")
	p.Must(0, p.Job(7, "0"), "epilog")
	// apply writes nothing into a folder that others may write.
	must.OK(t, os.Chmod(filepath.Dir(p.Paths().Policy()), 0o777))
	if out := apply(1, later, ""); !strings.Contains(out, "not root's own") {
		t.Errorf("in a folder of others: %s", out)
	}
	if result := p.Ctl("policy", "apply"); result.Code != 2 {
		t.Errorf("without a file: %+v", result)
	}
}
