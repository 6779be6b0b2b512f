package policyfile

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
)

func parsed(t *testing.T, source string) policy.Policy {
	t.Helper()
	law, err := Parse([]byte(source), "policy.hcl")
	if err != nil {
		t.Fatal(err)
	}
	return law
}

func TestTheShippedPolicyIsTheDefaults(t *testing.T) {
	source, err := os.ReadFile("../../site/etc/policy.hcl")
	if err != nil {
		t.Fatal(err)
	}
	law := parsed(t, string(source))
	if len(law.Rules) != 1 || law.Rules[0].Grant != policy.DefaultGrant() {
		t.Fatalf("the shipped policy grants %+v, the defaults are %+v", law.Rules, policy.DefaultGrant())
	}
	for _, c := range []struct {
		requested []string
		want      bool
	}{{[]string{"mps"}, true}, {[]string{"a100", "mps"}, true}, {[]string{"nomps"}, false}, {nil, false}} {
		_, asked, err := law.Decide(policy.Request{JobID: 7, Requested: c.requested})
		if err != nil || asked != c.want {
			t.Errorf("a job that requests %q: %v, %v; want %v", c.requested, asked, err, c.want)
		}
	}
}

func TestTheShippedFactsAreTheDefaults(t *testing.T) {
	source, err := os.ReadFile("../../site/etc/site.hcl")
	if err != nil {
		t.Fatal(err)
	}
	facts, err := ParseFacts(source, "site.hcl", site.DefaultFacts())
	if err != nil || facts != site.DefaultFacts() {
		t.Fatalf("%+v, %v", facts, err)
	}
	active := strings.ReplaceAll(string(source), "\n# ", "\n")
	active = active[strings.Index(active, "mps_control "):]
	if _, err := ParseFacts([]byte(active), "site.hcl", site.DefaultFacts()); err != nil {
		t.Errorf("a line of the shipped file does not hold when it is taken in: %v", err)
	}
}

func TestConditions(t *testing.T) {
	job := policy.Request{
		JobID: 7, User: "hpc1", UID: 2001, Account: "chem-a", Partition: "gpu", Comment: "a\nb",
		Requested: []string{"mps"}, GPUs: []int{0, 1}, NTasks: 8, Nodes: 1,
	}
	for when, want := range map[string]bool{
		`true`: true,
		`job.partition == "gpu" && length(job.gpus) > 1`:  true,
		`length(job.gpus) == 1`:                           false,
		`startswith(job.account, "chem")`:                 true,
		`endswith(job.account, "chem")`:                   false,
		`contains(job.requested, "mps") && job.uid>=1000`: true,
		`job.comment == "a\nb"`:                           true,
		`max(job.ntasks, 4) == 8 && min(job.nodes, 2)==1`: true,
		`lower(job.user) == "hpc1" && job.qos == ""`:      true,
	} {
		law := parsed(t, "version = 1\nrule \"r\" {\n when = "+when+"\n grant {}\n}\n")
		if _, got, err := law.Decide(job); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", when, got, err, want)
		}
	}
}

func TestTheFirstRuleDecides(t *testing.T) {
	law := parsed(t, `version = 1
rule "small" {
  when = length(job.gpus) == 1
  grant {
    scope       = "gpu"
    overlap     = 1
    drain_grace = "1m30s"
  }
}
rule "all" {
  when = true
  grant {}
}`)
	rule, _, err := law.Decide(policy.Request{GPUs: []int{3}})
	if err != nil || rule.Name != "small" || rule.Grant.Scope != policy.ScopeGPU || rule.Grant.DrainGrace != 90*time.Second {
		t.Errorf("one GPU: %+v, %v", rule, err)
	}
	if rule, _, _ = law.Decide(policy.Request{GPUs: []int{3, 4}}); rule.Name != "all" {
		t.Errorf("two GPUs: rule %q", rule.Name)
	}
}

// Every complaint whole: what, where, and what to do.
func TestBadPolicies(t *testing.T) {
	grant := func(line string) string {
		return "version = 1\nrule \"r\" {\n  when = true\n  grant {\n    " + line + "\n  }\n}\n"
	}
	when := func(expression string) string {
		return "version = 1\nrule \"r\" {\n  when = " + expression + "\n  grant {}\n}\n"
	}
	for _, c := range []struct{ source, want string }{
		{"", `policy.hcl:1:1: Missing required argument: The argument "version" is required, but no definition was found.`},
		{"version = 2\nnew {}\n", `policy.hcl:1:11: Unsupported version: this program reads policies of version 1, not 2`},
		{"version = \"x\"\n", `policy.hcl:1:11: Wrong type: version is a number`},
		{"version = 1\nrule \"r\" {", `policy.hcl:2:10: Unclosed configuration block: There is no closing brace for this block before the end of the file. This may be caused by incorrect brace nesting elsewhere in this file.`},
		{"version = 1\nrules = 3\n", `policy.hcl:2:1: Unsupported argument: An argument named "rules" is not expected here.`},
		{"version = 1\nrule {\n}\n", `policy.hcl:2:6: Missing name for rule: All rule blocks must have 1 labels (name).`},
		{"version = 1\nrule \"r\" {\n  grant {}\n}\n", `policy.hcl:2:10: Missing required argument: The argument "when" is required, but no definition was found.`},
		{"version = 1\nrule \"r\" {\n  when = true\n}\n", `policy.hcl:2:1: Wrong number of grant blocks: rule "r" has 0; write exactly one`},
		{when("true\n grant {}"), `policy.hcl:2:1: Wrong number of grant blocks: rule "r" has 2; write exactly one`},
		{when("true") + "rule \"r\" {\n  when = false\n  grant {}\n}\n", `policy.hcl:6:6: Duplicate rule: a rule named "r" stands at line 2 already; give this one another name`},
		{when(`job.gpu == 1`), `policy.hcl:3:13: Unsupported attribute: This object does not have an attribute named "gpu".`},
		{when(`user == "x"`), `policy.hcl:3:10: Unknown variable: There is no variable named "user".`},
		{when(`job.uid`), `policy.hcl:3:10: Wrong type: when is true or false, not a number`},
		{when(`hasprefix(job.user, "x")`), `policy.hcl:3:10: Call to unknown function: There is no function named "hasprefix".`},
		{grant(`scoop = "job"`), `policy.hcl:5:5: Unsupported argument: An argument named "scoop" is not expected here. Did you mean "scope"?`},
		{grant(`scope = "node"`), `policy.hcl:5:13: Unknown value "node": scope is one of ["job" "gpu"]`},
		{grant(`compute_mode = 3`), `policy.hcl:5:20: Unknown value "3": compute_mode is one of ["exclusive_process" "unchanged"]`},
		{grant(`share = []`), `policy.hcl:5:13: Wrong type: share is a string`},
		{grant(`overlap = 0.5`), `policy.hcl:5:15: Out of range: overlap is 1 to 48, not 0.5`},
		{grant(`ceiling = 101`), `policy.hcl:5:15: Out of range: ceiling is 1 to 100, not 101`},
		{grant(`drain_grace = "10"`), `policy.hcl:5:19: Not a duration: drain_grace is written like "10s" or "1m30s", not "10"`},
		{grant(`drain_grace = "1h"`), `policy.hcl:5:19: Out of range: drain_grace is 0s to 10m0s, not 1h0m0s`},
		{grant(`on_failure = job.user`), `policy.hcl:5:18: Variables not allowed: Variables may not be used here.`},
		{grant("scope = \"job\"\n    scope = \"gpu\""), `policy.hcl:6:5: Attribute redefined: The argument "scope" was already set at policy.hcl:5,5-10. Each argument may be set only once.`},
	} {
		_, err := Parse([]byte(c.source), "policy.hcl")
		if err == nil || err.Error() != c.want {
			t.Errorf("%s\n got  %v\n want %s", c.source, err, c.want)
		}
	}
}

func TestBadFacts(t *testing.T) {
	for _, c := range []struct{ source, want string }{
		{`nvml = "/x"`, `site.hcl:1:1: Unsupported argument: An argument named "nvml" is not expected here.`},
		{`mps_control = "nvidia-cuda-mps-control"`, `site.hcl:1:15: Not an absolute path: mps_control is a path from /, not "nvidia-cuda-mps-control"`},
		{`epilog_deadline = "1s"`, `site.hcl:1:19: Out of range: epilog_deadline is 5s to 1h0m0s, not 1s`},
	} {
		_, err := ParseFacts([]byte(c.source), "site.hcl", site.DefaultFacts())
		if err == nil || err.Error() != c.want {
			t.Errorf("%s\n got  %v\n want %s", c.source, err, c.want)
		}
	}
}
