// SPDX-License-Identifier: Apache-2.0

package policyfile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/lint"
	. "github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/zclconf/go-cty/cty"
)

func parsed(t *testing.T, source string) *Compiled {
	t.Helper()
	compiled, err := Parse([]byte(source), "policy.hcl")
	must.OK(t, err)
	return compiled
}

func shipped(t *testing.T) *Compiled {
	t.Helper()
	compiled, err := LoadFiles("../../site/etc")
	must.OK(t, err)
	return compiled
}

func TestTheShippedPolicyIsTheDefaults(t *testing.T) {
	compiled := shipped(t)
	verdict := compiled.Policy().Decide(policy.Request{Job: policy.Job{ID: 7, Requested: []string{"mps"}}})
	if !verdict.Granted() || verdict.Rule != "mps" || verdict.Grant != policy.DefaultGrant() {
		t.Errorf("the shipped policy grants %+v, the defaults are %+v", verdict, policy.DefaultGrant())
	}
	if needs := compiled.Policy().Lookups; needs != (policy.Lookups{}) {
		t.Errorf("the shipped policy takes look-ups: %+v", needs)
	}
}

// A default that is written down changes nothing: neither alone, nor with any line of the shipped policy left out.
func TestADefaultWrittenDownChangesNothing(t *testing.T) {
	source := "version = 1\ntrigger {\n  constraint = \"mps\"\n}\nrule \"mps\" {\n  when = true\n  grant {\n%s\n  }\n}\n"
	var policies []string
	for _, s := range policy.DefaultGrant().Settings() {
		value := s.Value
		if GrantTypes()[s.Name] == cty.String {
			value = strconv.Quote(value)
		}
		policies = append(policies, fmt.Sprintf(source, s.Name+" = "+value))
	}
	content, err := os.ReadFile("../../site/etc/policy.hcl")
	must.OK(t, err)
	start, grant, _ := strings.Cut(string(content), "  grant {\n")
	grant, end, _ := strings.Cut(grant, "  }\n")
	lines := strings.SplitAfter(strings.TrimSuffix(grant, "\n"), "\n")
	for i := range lines {
		without := strings.Join(slices.Delete(slices.Clone(lines), i, i+1), "")
		policies = append(policies, start+"  grant {\n"+without+"\n  }\n"+end)
	}
	if len(lines) < 10 || len(policies) != 2*len(lines) {
		t.Errorf("%d policies and %d lines: the shipped policy has not each attribute", len(policies), len(lines))
	}
	for _, text := range policies {
		compiled := parsed(t, text)
		verdict := compiled.Policy().Decide(policy.Request{Job: policy.Job{ID: 7, Requested: []string{"mps"}}})
		if !verdict.Granted() || verdict.Grant != policy.DefaultGrant() {
			t.Errorf("it grants %+v, the defaults are %+v:\n%s", verdict, policy.DefaultGrant(), text)
		}
		if warnings := lint.Warnings(compiled, noneMissing); len(warnings) > 0 {
			t.Errorf("%v in\n%s", warnings, text)
		}
	}
}

func TestTheShippedFactsAreTheDefaults(t *testing.T) {
	source, err := os.ReadFile("../../site/etc/site.hcl")
	must.OK(t, err)
	facts, err := ParseConfig(source, "site.hcl", site.DefaultConfig())
	if err != nil || facts != site.DefaultConfig() {
		t.Fatalf("%+v, %v", facts, err)
	}
	active := strings.ReplaceAll(string(source), "\n# ", "\n")
	active = active[strings.Index(active, "mps_control "):]
	if facts, err := ParseConfig([]byte(active), "site.hcl", site.DefaultConfig()); err != nil || facts.GresConf != "/etc/slurm/gres.conf" {
		t.Errorf("a line of the shipped file has no effect when it is uncommented: %+v, %v", facts, err)
	}
}

func TestBadFacts(t *testing.T) {
	for _, c := range []struct{ source, want string }{
		{`nvml = "/x"`, `site.hcl:1:1: Unsupported argument: An argument named "nvml" is not expected here.`},
		{`mps_control = "nvidia-cuda-mps-control"`, `site.hcl:1:15: Unusable value: mps_control is a path from /, not "nvidia-cuda-mps-control"`},
		{`mps_control = 3`, `site.hcl:1:15: Wrong type: mps_control is a string, not a number`},
		{`mps_control = job.user`, `site.hcl:1:15: Variables not allowed: mps_control is constant: it cannot depend on a job`},
		{`epilog_deadline = "1s"`, `site.hcl:1:19: Out of range: epilog_deadline is 5s to 1h0m0s, not 1s`},
		{`usage_interval = "10ms"`, `site.hcl:1:18: Out of range: usage_interval is 1s to 1h0m0s, not 10ms, or 0s for never`},
		{`epilog_deadline = "soon"`, `site.hcl:1:19: Not a duration: epilog_deadline is written like "10s" or "1m30s", not "soon"`},
	} {
		_, err := ParseConfig([]byte(c.source), "site.hcl", site.DefaultConfig())
		if err == nil || err.Error() != c.want {
			t.Errorf("%s\n got  %v\n want %s", c.source, err, c.want)
		}
	}
}

// A policy is policy.hcl and the files of policy.d, in the order of their names.
func TestLoad(t *testing.T) {
	must.Root(t)
	rule := func(name, when string) string {
		return "version = 1\nrule \"" + name + "\" {\n  when = " + when + "\n  grant {}\n}\n"
	}
	write := func(t *testing.T, dir string, files map[string]string) {
		t.Helper()
		for name, content := range files {
			path := filepath.Join(dir, name)
			must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)))
		}
	}
	good := map[string]string{
		"policy.hcl":                rule("first", "local.never"),
		"policy.d/20-c.hcl":         rule("third", "true"),
		"policy.d/10-b.hcl":         "version = 1\nlocals {\n  never = false\n}\n" + rule("second", "false")[12:],
		"policy.d/.20-c.hcl.swp":    "not HCL",
		"policy.d/20-mine_test.hcl": "not HCL",
		"policy.d/.hidden.hcl":      "not HCL",
		"policy.d/README":           "not HCL",
	}
	t.Run("in order", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, good)
		for _, load := range []func() (*Compiled, error){
			func() (*Compiled, error) { return Load(filepath.Join(dir, "policy.hcl")) },
			func() (*Compiled, error) { return LoadFiles(dir) },
		} {
			compiled, err := load()
			must.OK(t, err)
			var names []string
			for _, r := range compiled.Rules() {
				names = append(names, r.Name)
			}
			if got := strings.Join(names, " "); got != "first second third" {
				t.Errorf("rules %s", got)
			}
			if verdict := compiled.Policy().Decide(policy.Request{}); verdict.Rule != "third" {
				t.Errorf("rule %q decides", verdict.Rule)
			}
		}
		if _, err := LoadFiles(filepath.Join(dir, "policy.hcl")); err == nil || !strings.Contains(err.Error(), `there is no local named "never"`) {
			t.Errorf("a file by itself: %v", err)
		}
	})
	for _, c := range []struct {
		name string
		make func(dir string) error
		want string
	}{
		{"a name twice", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "policy.d", "30-d.hcl"), []byte(rule("first", "true")), 0o644)
		}, `DIR/policy.d/30-d.hcl:2:6: Duplicate rule: a rule named "first" stands at DIR/policy.hcl:2 already; give this one another name`},
		{"no version", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "policy.d", "30-d.hcl"), []byte("locals {}\n"), 0o644)
		}, `DIR/policy.d/30-d.hcl:1:1: Missing version: a file begins with version = 1, outside of every block`},
		{"a link", func(dir string) error {
			return os.Symlink(filepath.Join(dir, "policy.hcl"), filepath.Join(dir, "policy.d", "30-d.hcl"))
		}, "cannot read DIR/policy.d/30-d.hcl: not root's own: it is a symbolic link"},
		{"a file that others may write", func(dir string) error { return os.Chmod(filepath.Join(dir, "policy.d", "20-c.hcl"), 0o666) },
			"cannot read DIR/policy.d/20-c.hcl: not root's own: its mode 0666 lets others write"},
		{"a folder that others may write", func(dir string) error { return os.Chmod(filepath.Join(dir, "policy.d"), 0o777) },
			"cannot open DIR/policy.d: not root's own: its mode 0777 lets others write"},
		{"a folder of another's", func(dir string) error { return os.Chown(filepath.Join(dir, "policy.d"), 2001, 2001) },
			"cannot open DIR/policy.d: not root's own: its owner is uid 2001"},
		{"no policy.hcl", func(dir string) error { return os.Remove(filepath.Join(dir, "policy.hcl")) },
			"cannot read DIR/policy.hcl: no such file or directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, good)
			must.OK(t, c.make(dir))
			_, err := Load(filepath.Join(dir, "policy.hcl"))
			if err == nil || strings.ReplaceAll(err.Error(), dir, "DIR") != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// A file that would use all of the stack of hcl's parser is refused. A file that is not refused has a value.
func TestHugeFiles(t *testing.T) {
	nested := "p:1:1: Too large: a policy file has at most 10000 brackets, signs and choices: put some of its rules into policy.d"
	for _, piece := range []string{"(", "[", "!", "-", "\"${", "1?1:", "f(", "{a=", "a[", "[for x in ", "\"%{if x}"} {
		_, err := Parse([]byte("a = "+strings.Repeat(piece, 20000)), "p")
		if err == nil || err.Error() != nested {
			t.Errorf("%q: got  %v\nwant %s", piece, err, nested)
		}
		if _, err := Parse([]byte("a = "+strings.Repeat(piece, 4000)), "p"); err == nil {
			t.Errorf("%q loads", piece)
		}
	}
	_, err := Parse(make([]byte, 256<<10+1), "p")
	if want := "p:1:1: Too large: a policy file has at most 262144 bytes: put some of its rules into policy.d"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for _, when := range []string{
		"(" + strings.Repeat("true &&\n", 30000) + "true)",
		strings.Repeat("1+", 30000) + "1 > job.uid",
		strings.Repeat("!", 1000) + "gpu.mig",
		strings.Repeat("(", 9000) + "gpu.mig" + strings.Repeat(")", 9000),
		strings.Repeat("job.uid == 1 ? false : ", 5000) + "true",
	} {
		compiled, err := Parse([]byte("version = 1\ntrigger {\n  option = true\n}\nrule \"r\" {\n  when = "+when+"\n  grant {}\n}\n"), "p")
		if err != nil {
			t.Fatalf("%.20s: %v", when, err)
		}
		r := policy.Request{Job: policy.Job{HasOption: true}}
		if compiled.Policy().Decide(r).Denied == "" != lint.Explain(compiled, r).Verdict.Granted() {
			t.Errorf("%.20s: explain and decide differ", when)
		}
	}
	chain := "version = 1\nrule \"r\" {\n  when = " + strings.Repeat("true &&\n", 5000) + "true)\n  grant {}\n}\n"
	_, err = Parse([]byte(chain), "p")
	var wrong *Error
	if !errors.As(err, &wrong) || len(wrong.Diagnostics()) > 100 {
		t.Errorf("got %v", err)
	}
}

// All errors of all files are reported, in their order. The first error is one line.
func TestComplaints(t *testing.T) {
	dir := t.TempDir()
	for name, source := range map[string]string{
		"b.hcl": "version = 1\nrule \"r\" {\n  when = user\n  grant {\n    ceiling = 999\n  }\n}\n",
		"a.hcl": "version = 1\nlocals {\n  x = local.y\n}\nquota {}\n",
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(source), 0o644))
	}
	_, err := LoadFiles(filepath.Join(dir, "b.hcl"), filepath.Join(dir, "a.hcl"))
	var wrong *Error
	if !errors.As(err, &wrong) {
		t.Fatal(err)
	}
	var places []string
	for _, c := range wrong.Diagnostics() {
		places = append(places, strings.TrimPrefix(c.String(), dir+"/"))
	}
	want := []string{
		`b.hcl:3:10: Unknown variable: There is no variable named "user". Did you mean job.user?`,
		"b.hcl:5:15: Unusable value 999: ceiling: want a number from 1 to 100",
		`a.hcl:3:12: Unsupported attribute: there is no local named "y".`,
		`a.hcl:5:1: Unsupported block type: Blocks of type "quota" are not expected here. A policy has trigger, locals, defaults and rule.`,
	}
	if !slices.Equal(places, want) || wrong.Error() != wrong.Diagnostics()[0].String() {
		t.Errorf("got  %q\nwant %q", places, want)
	}
	if c := wrong.Diagnostics()[1]; c.In != `rule "r"` || c.Source != "    ceiling = 999" || c.EndColumn != 18 {
		t.Errorf("%+v", c)
	}
	text := lint.Text(wrong.Diagnostics(), true)
	if !strings.HasPrefix(text, "\x1b[31mError\x1b[0m: \x1b[1mUnknown variable\x1b[0m\n") {
		t.Errorf("%q", text)
	}
}

// A policy says once, in whichever file, whether jobs without MPS are recorded. Without a word they are not.
func TestRecord(t *testing.T) {
	for written, want := range map[string]bool{"": false, "record = \"mps\"\n": false, "record = \"all\"\n": true} {
		c, err := Parse([]byte("version = 1\n"+written+"rule \"r\" {\n  when = true\n  grant {}\n}\n"), "p.hcl")
		if err != nil || c.Policy().RecordAll != want {
			t.Errorf("%q: %v, want %v", written, err, want)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"policy.hcl":        "version = 1\nrecord = \"all\"\nrule \"r\" {\n  when = true\n  grant {}\n}\n",
		"policy.d/10-x.hcl": "version = 1\nrecord = \"mps\"\n",
	} {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
		must.OK(t, err)
	}
	_, err := LoadFiles(dir)
	want := "Duplicate record: a policy has one record, in whichever file: it stands at " + dir + "/policy.hcl:2 "
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
