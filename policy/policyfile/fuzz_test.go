package policyfile

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
)

func FuzzParse(f *testing.F) {
	shipped, err := os.ReadFile("../../site/etc/policy.hcl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(shipped)
	f.Add([]byte("version = 1\nrule \"r\" {\n when = job.gpus[0] == 3\n grant {}\n}\n"))
	f.Add([]byte("version = 1e400"))
	f.Fuzz(func(t *testing.T, source []byte) {
		law, err := Parse(source, "p")
		if err != nil {
			return
		}
		if _, _, err := law.Decide(policy.Request{}); err != nil && !strings.Contains(err.Error(), "rule") {
			t.Errorf("an error that names no rule: %v", err)
		}
	})
}

// BenchmarkDecide is the last of 200 rules.
func BenchmarkDecide(b *testing.B) {
	var source strings.Builder
	source.WriteString("version = 1\n")
	for i := range 200 {
		fmt.Fprintf(&source, "rule \"r%d\" {\n  when = job.partition == \"p%d\" && contains(job.requested, \"mps\") && length(job.gpus) > 1\n  grant {}\n}\n", i, i)
	}
	law, err := Parse([]byte(source.String()), "p")
	if err != nil {
		b.Fatal(err)
	}
	request := policy.Request{Partition: "p199", Requested: []string{"mps"}, GPUs: []int{0, 1}}
	for b.Loop() {
		if rule, ok, err := law.Decide(request); !ok || err != nil || rule.Name != "r199" {
			b.Fatal(rule.Name, err)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	shipped, err := os.ReadFile("../../site/etc/policy.hcl")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Parse(shipped, "p"); err != nil {
			b.Fatal(err)
		}
	}
}
