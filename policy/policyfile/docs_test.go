package policyfile

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
)

var fenced = regexp.MustCompile("(?s)```hcl\n(.*?)```")

// Every fenced HCL of the documents is parsed: a policy, or facts where its first line says "# site".
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
			if strings.HasPrefix(string(m[1]), "# site") {
				_, err = ParseFacts(m[1], path, site.DefaultFacts())
			} else {
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
		if grantAttributes[string(m[1])] == nil {
			t.Errorf("%s is documented and is no attribute", m[1])
		}
	}
	for name := range grantAttributes {
		if !rows[name] {
			t.Errorf("%s is not documented", name)
		}
	}
	for name := range jobAttributes {
		if !strings.Contains(string(content), "`"+name+"`") && !strings.Contains(string(content), "`job."+name+"`") {
			t.Errorf("job.%s is not documented", name)
		}
	}
}
