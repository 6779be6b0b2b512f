package policyfile

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
)

var fenced = regexp.MustCompile("(?s)```hcl\n(.*?)```")

// Every fenced HCL of the documents is parsed: a policy, or what its first line says.
func TestTheDocumentsParse(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range append(paths, "../../README.md") {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fenced.FindAllSubmatch(content, -1) {
			found++
			switch first, _, _ := strings.Cut(string(m[1]), "\n"); first {
			case "# site":
				_, err = ParseFacts(m[1], path, site.DefaultFacts())
			case "# cases":
				_, err = ParseCases(m[1], path)
			default:
				_, err = Parse(m[1], path)
			}
			if err != nil {
				t.Errorf("%v in\n%s", err, m[1])
			}
		}
	}
	if found < 2 {
		t.Errorf("only %d fences found", found)
	}
}

// The table of docs/policy.md has every attribute of a grant and no other.
func TestThePolicyTableIsWhole(t *testing.T) {
	content, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllSubmatch(content, -1) {
		rows[string(m[1])] = true
	}
	for _, a := range grantAttributes {
		if !rows[a.name] {
			t.Errorf("%s is not documented", a.name)
		}
		delete(rows, a.name)
	}
	for name := range rows {
		t.Errorf("%s is documented and is no attribute", name)
	}
	for root, variables := range namespaces {
		for _, v := range variables {
			if !strings.Contains(string(content), "`"+root+"."+v.name+"`") {
				t.Errorf("%s.%s is not documented", root, v.name)
			}
		}
	}
	for name := range builtins {
		if !strings.Contains(string(content), "`"+name+"(") {
			t.Errorf("%s is not documented", name)
		}
	}
	for _, name := range policy.OptionNames() {
		if !strings.Contains(string(content), "`"+name+"=") {
			t.Errorf("the option %s is not documented", name)
		}
	}
}

// The cases of docs/policy.md hold for its policy.
func TestTheCasesOfTheDocumentHold(t *testing.T) {
	content, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	fences := fenced.FindAllSubmatch(content, -1)
	if len(fences) != 2 {
		t.Fatalf("%d fences, want a policy and its cases", len(fences))
	}
	cases, err := ParseCases(fences[1][1], "policy.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range parsed(t, string(fences[0][1])).Run(cases) {
		if !r.Passed {
			t.Errorf("%s: %q", r.Name, r.Wrong)
		}
	}
}
