// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// offPage returns the policy by which docs/operator.md switches MPS off, and the conditions that replace "true" in its
// rule: for a partition, and for a user.
func offPage(t *testing.T) (site string, narrower []string) {
	t.Helper()
	_, section, _ := strings.Cut(e2e.Read(t, "../../../docs/operator.md"), "\n## Switch it off\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, block, _ := strings.Cut(section, "```hcl\n")
	site, _, _ = strings.Cut(block, "```")
	for _, m := range regexp.MustCompile("`when = ([^`]+)`").FindAllStringSubmatch(section, -1) {
		narrower = append(narrower, m[1])
	}
	if !strings.Contains(site, "deny = ") || len(narrower) != 2 {
		t.Fatalf("docs/operator.md has the policy %q and the conditions %q", site, narrower)
	}
	return site, narrower
}

// The policies of docs/operator.md switch MPS off for a site, a partition and a user, from the node's next job
// on. A denied job has its GPUs without MPS and the reason, and SLURM_MPS=off runs its program. A job that does not ask
// sees nothing, a running one goes on and is closed, and the earlier policy switches MPS on.
func TestSwitchOff(t *testing.T) {
	site, narrower := offPage(t)
	const grants = "\nrule \"all\" {\n  when = true\n  grant {}\n}\n"
	policies := map[string]string{"site": site}
	for _, when := range narrower {
		policies[when] = strings.Replace(site, "when = true", "when = "+when, 1) + grants
	}
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			p := newTestNode(t, triggered+grants, node.H200, node.H200)
			p.Must(0, p.Job(6, "1"), "prolog")
			running := p.Ticket(6)
			p.Write(p.Paths().Policy(), policy)
			if checked := p.Ctl("policy", "check"); checked.Code != 0 {
				t.Fatalf("%+v", checked)
			}
			job := p.Job(7, "0")
			for i, user := range []string{"ana", "bo"} {
				for j, partition := range []string{"gpu", "cpu"} {
					denied := name == "site" || strings.Contains(name, "user") && i == 0 || strings.Contains(name, "partition") && j == 0
					p.life(user, partition, denied)
				}
			}
			job.Features = ""
			p.Must(0, job, "prolog")
			if p.Modes() != "03" {
				t.Errorf("a job that does not ask: modes %s", p.Modes())
			}
			p.Must(0, job, "epilog")
			if !e2e.Alive(running.Daemons[0].Proc) {
				t.Error("the running job has lost its daemon")
			}
			p.Close(p.Job(6, "1"))
			p.Write(p.Paths().Policy(), triggered+grants)
			p.Must(0, p.Job(8, "0"), "prolog")
			if p.Ticket(8).RefusalReason != "" {
				t.Errorf("switched on: %+v", p.Ticket(8))
			}
			p.Must(0, p.Job(8, "0"), "epilog")
		})
	}
}

// life is a job's prolog, programs of its user, and its epilog.
func (p testNode) life(user, partition string, denied bool) {
	p.T.Helper()
	whose := user + " in " + partition
	run := func(hook string) {
		env := e2e.With(p.Job(7, "0").Environment(hook+"_slurmd"), "SLURM_JOB_USER", user)
		result, err := p.Run(p.Ctx, e2e.With(env, "SLURM_JOB_PARTITION", partition), hook)
		if err != nil || result.Code != 0 {
			p.T.Fatalf("%s: %s: %+v, %v", whose, hook, result, err)
		}
	}
	run("prolog")
	reason := map[bool]string{true: "MPS is switched off here for now"}[denied]
	if got := p.Ticket(7).RefusalReason; got != reason {
		p.T.Errorf("%s: refused %q, want %q", whose, got, reason)
	}
	if want := map[bool]string{true: "03", false: "33"}[denied]; p.Modes() != want {
		p.T.Errorf("%s: modes %s, want %s", whose, p.Modes(), want)
	}
	out, err := p.AsUser(7, p.Command("mpirun-wrap", "true")).CombinedOutput()
	if denied == (err == nil) || denied && !strings.Contains(string(out), "this job has no MPS: "+reason) {
		p.T.Errorf("%s: mpirun-wrap: %v: %s", whose, err, out)
	}
	if denied {
		off := p.AsUser(7, p.Command("mpirun-wrap", "true"))
		off.Env = append(off.Env, "SLURM_MPS=off")
		if out, err := off.CombinedOutput(); err != nil {
			p.T.Errorf("%s: SLURM_MPS=off: %v: %s", whose, err, out)
		}
	}
	run("epilog")
}
