// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

const teaching = `version = 1

trigger {
  constraint = "mps"
  option     = true
}

rule "teaching" {
  when = job.partition == "edu" && length(job.gpus) > 1
  deny = "MPS on the edu partition is for one GPU at a time"
}

rule "chemistry" {
  when  = startswith(job.account, "chem")
  allow = ["share", "ceiling"]
  grant {
    scope = "gpu"
    share = "overlap:3"
  }
}

rule "all" {
  when = true
  grant {}
}
`

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
	p := newTestNode(t, teaching, node.H200, node.H200)
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
	p := newTestNode(t, teaching, node.H200)
	job := p.Job(7, "0")
	job.Extra = append(job.Extra, "SLURM_JOB_ACCOUNT=chem-a")
	p.Must(0, job, "prolog")
	if x := p.explained("--job", "7"); x.Verdict.Rule != "chemistry" || x.Decided != "chemistry" || len(x.Rules) != 2 || x.Rules[0].Holds {
		t.Errorf("%+v", x)
	}
	p.Write(p.Paths().Policy(), strings.Replace(teaching, `"chem"`, `"physics"`, 1))
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

// explain prints the placements that the rule gives: overlap 2 of four ranks is 66 of 132 SMs, and of three it is 88.
func TestExplainPrintsThePlacements(t *testing.T) {
	p := newTestNode(t, teaching, node.H200)
	x := p.explained("--constraint", "mps", "--gpu", "H200", "--gpus", "2", "--ranks", "7")
	if got, want := fmt.Sprint(x.Ranks), "[{0 0 66} {1 1 88} {2 0 66} {3 1 88} {4 0 66} {5 1 88} {6 0 66}]"; got != want {
		t.Errorf("placed %s, want %s", got, want)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--ranks", "2"}, `mpsctl: cannot place ranks: cannot find GPU "": known are `},
		{[]string{"--gpu", "H200", "--ranks", "49"}, "mpsctl: cannot place 49 ranks on 1 GPU: GPU 0 would have 49 and MPS serves 48 at once"},
		{[]string{"--gpu", "H200", "--ranks", "-1"}, "mpsctl: cannot explain -1 ranks on 1 GPUs: give --gpus 0 to 64, and --ranks 1 or more"},
	} {
		result := p.Ctl(append([]string{"policy", "explain", "--constraint", "mps"}, c.args...)...)
		if result.Code != 2 || !strings.HasPrefix(result.Output, c.want) {
			t.Errorf("%v: code %d\n%s", c.args, result.Code, result.Output)
		}
	}
}

func TestPolicyCheckAndTest(t *testing.T) {
	p := newTestNode(t, teaching, node.H200)
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		p.Write(path, content)
		return path
	}
	good := write("policy.hcl", teaching)
	bad := write("bad.hcl", "version = 1\nrule \"x\" {\n  when = job.gpu == 1\n  grant { scope = \"nod\" }\n}\n")
	never := write("never.hcl", strings.Replace(teaching, `when = job.partition`, `when = gpu.model == "h200" || job.partition`, 1))
	cases := write("policy_test.hcl", `version = 1
case "a student with two GPUs" {
  job {
    partition = "edu"
    requested = ["mps"]
    gpus      = [0, 1]
  }
  expect {
    rule   = "teaching"
    denied = "one GPU at a time"
  }
}
`)
	failing := write("failing_test.hcl", `version = 1
case "wrong" {
  job {
    requested = ["mps"]
  }
  expect {
    rule = "chemistry"
  }
}
`)
	alone := filepath.Join(t.TempDir(), "some_test.hcl")
	p.Write(alone, e2e.Read(t, cases))
	p.Write(filepath.Join(filepath.Dir(p.Paths().Policy()), "policy_test.hcl"), e2e.Read(t, failing))
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"check"}, 0, "can be used: 3 rules\n"},
		{[]string{"check", good}, 0, good + " can be used: 3 rules\n"},
		{[]string{"check", never}, 0, "Warning: Never equal\n\n  on " + never + " line 9, column 23, in rule \"teaching\":"},
		{[]string{"check", "--json", never}, 0, `"warnings":[{"file":"` + never + `","line":9,`},
		{[]string{"check", bad}, 1, "   3:   when = job.gpu == 1\n                  ^^^^"},
		{[]string{"check", bad}, 1, `scope: want job or gpu`},
		{[]string{"check", "--json", bad}, 1, `{"ok":false,"diagnostics":[{"file":"` + bad + `","line":3,"column":13`},
		{[]string{"check", dir + "/none.hcl"}, 1, "mpsctl: cannot read " + dir + "/none.hcl: no such file or directory\n"},
		{[]string{"test", cases}, 0, ": case \"a student with two GPUs\"\n1 case passed, 0 failed\n"},
		{[]string{"test", failing}, 1, "FAIL " + failing +
			":2: case \"wrong\"\n     the rule that decides is \"all\", expected \"chemistry\"\n0 cases passed, 1 failed\n"},
		{[]string{"test", "--json", "--policy", good, failing}, 1, `"failed":1}`},
		{[]string{"test"}, 1, "0 cases passed, 1 failed\n"},
		{[]string{"test", alone}, 1, "mpsctl: cannot test " + alone + ": there is no policy.hcl beside it: name the policy with --policy\n"},
		{[]string{"explain", "--gpus", "99"}, 2, "mpsctl: cannot explain 0 ranks on 99 GPUs: give --gpus 0 to 64, and --ranks 1 or more\n"},
		{[]string{"judge"}, 2, "mpsctl: cannot run \"judge\": there is no such command: see mpsctl policy --help\n"},
	} {
		result := p.Ctl(append([]string{"policy"}, c.args...)...)
		if result.Code != c.code || !strings.Contains(result.Output, c.want) || c.want == "" && result.Output != "" {
			t.Errorf("%q: code %d, want %d\n got  %s\n want %s", c.args, result.Code, c.code, result.Output, c.want)
		}
	}
}

var (
	defaultLines = regexp.MustCompile(`(?m)(^  \w+ += \S+ +default\n)+`)
	allowedNames = regexp.MustCompile(`this job set [a-z_, ]+ alone`)
)

// withoutAttributes cuts the attributes that have their defaults, and the names that the policy allows, so that no golden
// changes with a new attribute. Each attribute of a grant must have a line with its value.
func withoutAttributes(t *testing.T, text string) string {
	t.Helper()
	if strings.Contains(text, "\nGranted by rule") {
		for _, setting := range policy.DefaultGrant().Settings() {
			name, value := regexp.QuoteMeta(setting.Name), regexp.QuoteMeta(setting.Value)
			if !regexp.MustCompile(`(?m)^  ` + name + ` += (` + value + ` +default|.*[^t])$`).MatchString(text) {
				t.Errorf("explain does not print %s = %s:\n%s", setting.Name, setting.Value, text)
			}
		}
	}
	return allowedNames.ReplaceAllString(defaultLines.ReplaceAllString(text, "  (defaults)\n"), "this job set (names) alone")
}

// explain prints these texts for six jobs with the shipped policy.
func TestExplainOnTheShippedPolicy(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	p.Write(p.Paths().Policy(), e2e.Read(t, "../../../site/etc/policy.hcl"))
	for name, args := range map[string][]string{
		"eight-ranks-on-two-gpus": {"--constraint", "mps", "--gpus", "2", "--gpu", "H200", "--ranks", "8"},
		"does-not-ask":            {"--gpus", "1"},
		"asks-in-its-comment":     {"--comment", "mps:share=even,mem=8G", "--gpu", "H200", "--ranks", "3"},
		"asks-for-a-scope":        {"--mps=scope=gpu", "--gpus", "2"},
		"has-no-gpu":              {"--constraint", "mps", "--gpus", "0"},
		"asks-for-too-much":       {"--constraint", "a100&mps", "--mps=hold=5s"},
	} {
		t.Run(name, func(t *testing.T) {
			got := p.Ctl(append([]string{"policy", "explain"}, args...)...)
			text := "$ mpsctl policy explain " + strings.ReplaceAll(strings.Join(args, " "), "a100&mps", "'a100&mps'") + "\n" +
				strings.ReplaceAll(got.Output, p.Root, "")
			if got.Code != 0 {
				t.Errorf("code %d:\n%s", got.Code, text)
			}
			golden.Compare(t, filepath.Join("testdata", "explain", name+".txt"), withoutAttributes(t, text))
		})
	}
}

// policy apply installs a whole policy or nothing, after the policy's own tests. It prints the difference.
func TestPolicyApply(t *testing.T) {
	p := newTestNode(t, teaching, node.H200)
	dir := t.TempDir()
	file := filepath.Join(dir, "new.hcl")
	besideNew := filepath.Join(dir, "policy_test.hcl")
	apply := func(code int, policy, cases string) string {
		t.Helper()
		p.Write(file, policy)
		p.Write(besideNew, cases)
		if cases == "" {
			if err := os.Remove(filepath.Join(dir, "policy_test.hcl")); err != nil {
				t.Fatal(err)
			}
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
	if out := apply(1, teaching+"rule \"x\" {", ""); !strings.Contains(out, file+" line 26") {
		t.Errorf("broken: %s", out)
	}
	same(teaching, 2)
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
	same(teaching, 2)
	if err := os.Chmod(p.Paths().Policy(), 0o640); err != nil {
		t.Fatal(err)
	}
	changed := "--- " + p.Paths().Policy() + "\n+++ " + file + "\n@@ -2,12 +2,13 @@\n"
	if result := p.Ctl("policy", "apply", "--dry-run", file); result.Code != 1 {
		t.Errorf("a dry run with a case that fails: %+v", result)
	}
	p.Write(filepath.Join(dir, "policy_test.hcl"), strings.Replace(cases, "RULE", "all", 1))
	if result := p.Ctl("policy", "apply", "--dry-run", file); result.Code != 0 || !strings.HasPrefix(result.Output, changed) ||
		!strings.HasSuffix(result.Output, "\nNothing has changed: "+p.Paths().Policy()+" stays as it is.\n") {
		t.Errorf("a dry run: %+v", result)
	}
	same(teaching, 2)
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
	const none = "No line changes.\n0 cases passed, 0 failed\n"
	if out := apply(0, later, ""); !strings.HasPrefix(out, none) || strings.Contains(out, "To go back") {
		t.Errorf("again: %s", out)
	}
	if result := p.Ctl(strings.Fields(back)...); result.Code != 0 {
		t.Errorf("%s: %+v", back, result)
	}
	same(teaching, 4)
	// apply replaces a broken policy. From then on the copy of the new policy is used if the policy breaks.
	p.Write(p.Paths().Policy(), "rubbish {")
	if out := apply(0, later, ""); strings.Contains(out, "To go back") {
		t.Errorf("a broken policy is a way back: %s", out)
	}
	p.Write(p.Paths().Policy(), "rubbish {")
	p.Must(0, p.Job(7, "0"), "prolog")
	p.Must(0, p.Job(7, "0"), "epilog")
	// apply writes nothing into a folder that others may write.
	if err := os.Chmod(filepath.Dir(p.Paths().Policy()), 0o777); err != nil {
		t.Fatal(err)
	}
	if out := apply(1, later, ""); !strings.Contains(out, "not root's own") {
		t.Errorf("in a folder of others: %s", out)
	}
	if result := p.Ctl("policy", "apply"); result.Code != 2 {
		t.Errorf("without a file: %+v", result)
	}
}

// The last five policies that apply replaced are kept, for root alone and with their cases. The newest goes back to the
// policy and the cases before. Nothing is kept in a folder that is a link or another's, and nothing is applied then.
func TestReplacedPoliciesAreKept(t *testing.T) {
	p := newTestNode(t, teaching, node.H200)
	file, cases := filepath.Join(t.TempDir(), "policy.hcl"), ""
	etc := filepath.Dir(p.Paths().Policy())
	old, elsewhere := filepath.Join(etc, "old"), t.TempDir()
	apply := func(n int) testnode.Result {
		t.Helper()
		p.Write(file, fmt.Sprintf("%s\n# %d\n", teaching, n))
		cases = fmt.Sprintf("version = 1\ncase \"%d\" {\n  job {}\n  expect {\n    asked = false\n  }\n}\n", n)
		p.Write(filepath.Join(filepath.Dir(file), "policy_test.hcl"), cases)
		return p.Ctl("policy", "apply", file)
	}
	for _, spoil := range []func() error{
		func() error { return os.Symlink(elsewhere, old) },
		func() error { return errors.Join(os.Remove(old), os.Mkdir(old, 0o755), os.Chmod(old, 0o777)) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if result := apply(0); result.Code != 1 || !strings.Contains(result.Output, "cannot keep the replaced policy: ") {
			t.Errorf("%+v", result)
		}
		if got := e2e.Read(t, p.Paths().Policy()); got != teaching {
			t.Errorf("applied: %s", got)
		}
	}
	if names, err := os.ReadDir(elsewhere); err != nil || len(names) > 0 {
		t.Errorf("at the target of the link: %v, %v", names, err)
	}
	if err := os.Remove(old); err != nil {
		t.Fatal(err)
	}
	back := ""
	for n := range 8 {
		result := apply(n)
		_, back, _ = strings.Cut(result.Output, "To go back: mpsctl ")
		if result.Code != 0 || back == "" {
			t.Fatalf("%+v", result)
		}
	}
	kept, err := filepath.Glob(filepath.Join(old, "*", "policy.hcl"))
	if err != nil || len(kept) != 5 {
		t.Fatalf("kept: %q, %v", kept, err)
	}
	for i, path := range kept {
		if mark := fmt.Sprintf("\n# %d\n", i+2); !strings.HasSuffix(e2e.Read(t, path), mark) {
			t.Errorf("%s does not end with %q", path, mark)
		}
		for _, dir := range []string{old, filepath.Dir(path)} {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v, %v", dir, info, err)
			}
		}
	}
	if result := p.Ctl(strings.Fields(back)...); result.Code != 0 || !strings.Contains(result.Output, `: case "6"`) {
		t.Errorf("%s: %+v", back, result)
	}
	if got := e2e.Read(t, p.Paths().Policy()); !strings.HasSuffix(got, "\n# 6\n") {
		t.Errorf("the policy before is not back: %s", got)
	}
	if got := e2e.Read(t, filepath.Join(etc, "policy_test.hcl")); !strings.Contains(got, `case "6"`) {
		t.Errorf("the cases before are not back: %s", got)
	}
}

// JSON output has text without escapes, so that a reader can copy it without decoding.
func TestJSONIsNotEscaped(t *testing.T) {
	p := newTestNode(t, teaching, node.H200)
	if out := p.Ctl("policy", "explain", "--json", "--partition", "edu", "--constraint", "mps").Output; !strings.Contains(out, " && length(job.gpus) > 1") {
		t.Errorf("%s", out)
	}
	var sources []string
	for _, pattern := range []string{"cmd/*/*.go", "cmd/mpsctl/*/*.go", "site/c*/*.go", "site/guard/*/*.go", "prolog/*/*.go"} {
		found, err := filepath.Glob("../../../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, found...)
	}
	if len(sources) < 50 {
		t.Fatalf("only %d sources", len(sources))
	}
	for _, path := range sources {
		// A gauge answers the guard, and no reader.
		if !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, "/gauge.go") &&
			path != "../../../site/cli/cli.go" && strings.Contains(e2e.Read(t, path), "json.NewEncoder(") {
			t.Errorf("%s writes JSON itself: use cli.WriteJSON", path)
		}
	}
}
