// SPDX-License-Identifier: Apache-2.0

package main

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
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// folder is a root with a policy. The policy commands run below it, in this process.
type folder struct {
	t    *testing.T
	Root string
}

func newFolder(t *testing.T, policy string) folder {
	t.Helper()
	p := folder{t, t.TempDir()}
	p.Write(p.Paths().Policy(), policy)
	return p
}

func (p folder) Paths() site.Paths { return site.Paths{Root: p.Root} }

func (p folder) Write(path, content string) {
	p.t.Helper()
	must.OK(p.t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)))
}

// ended is how a command ended, and what it printed.
type ended struct {
	Code   int
	Output string
}

func (p folder) Ctl(args ...string) ended {
	code, out, complaint := runRoot(policyCommand, append([]string{"--root", p.Root}, args...)...)
	return ended{code, out + complaint}
}

// explain prints the placements that the rule gives: overlap 2 of four ranks is 66 of 132 SMs, and of three it is 88.
func TestExplainPrintsThePlacements(t *testing.T) {
	p := newFolder(t, testnode.Teaching)
	var x struct {
		Ranks []struct{ Rank, GPU, SMs int }
	}
	said := p.Ctl("policy", "explain", "--json", "--constraint", "mps", "--gpu", "H200", "--gpus", "2", "--ranks", "7").Output
	if err := json.Unmarshal([]byte(said), &x); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
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

func TestPolicyCheck(t *testing.T) {
	p := newFolder(t, testnode.Teaching)
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		p.Write(path, content)
		return path
	}
	good := write("policy.hcl", testnode.Teaching)
	bad := write("bad.hcl", "version = 1\nrule \"x\" {\n  when = job.gpu == 1\n  grant { scope = \"nod\" }\n}\n")
	nowhere := write("nowhere.hcl", strings.Replace(testnode.Teaching, `when = job.partition`, `when = contains(job.groups, "studnets") || job.partition`, 1))
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"check"}, 0, "can be used: 3 rules\n"},
		{[]string{"check", good}, 0, good + " can be used: 3 rules\n"},
		{[]string{"check", "--json", nowhere}, 0, `"warnings":[{"file":"` + nowhere + `","line":9,`},
		{[]string{"check", nowhere}, 0, `this node knows no group "studnets": see getent group`},
		{[]string{"check", bad}, 1, "   3:   when = job.gpu == 1\n                  ^^^^"},
		{[]string{"check", bad}, 1, `scope: want job or gpu`},
		{[]string{"check", "--json", bad}, 1, `{"ok":false,"diagnostics":[{"file":"` + bad + `","line":3,"column":13`},
		{[]string{"check", dir + "/none.hcl"}, 1, "mpsctl: cannot read " + dir + "/none.hcl: no such file or directory\n"},
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
	p := newFolder(t, testnode.Teaching)
	p.Write(p.Paths().Policy(), e2e.Read(t, "../../site/etc/policy.hcl"))
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
			golden.CompareIn(t, goldens, "explain/"+name+".txt", withoutAttributes(t, text))
		})
	}
}
