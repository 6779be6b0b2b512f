// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

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
