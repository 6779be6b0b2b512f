// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"errors"
	"os"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
)

func TestFormat(t *testing.T) {
	got, err := inOwnForm([]byte("version=1\nrule   \"a\" {\nwhen=true\n  allow = [ \"share\" ]\n}\n"), "p")
	want := "version = 1\nrule \"a\" {\n  when  = true\n  allow = [\"share\"]\n}\n"
	if err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	var wrong *policyfile.Error
	if _, err := inOwnForm([]byte("rule {"), "p"); !errors.As(err, &wrong) {
		t.Errorf("no HCL: %v", err)
	}
	for _, path := range []string{"../../../site/etc/policy.hcl", "../../../site/etc/policy_test.hcl", "../../../site/etc/site.hcl"} {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if formatted, err := inOwnForm(source, path); err != nil || string(formatted) != string(source) {
			t.Errorf("%s is not in hcl's own form: %v\n%s", path, err, formatted)
		}
	}
}

// A factor that an expression gives may have more decimals than a user may write: 4/3 is planned as well.
func TestAPlacementOfAFactorWithoutEnd(t *testing.T) {
	var a answer
	a.Verdict = policy.Decision{Requested: true, Grant: policy.DefaultGrant()}
	a.Verdict.Grant.MemoryOverlap, a.Verdict.Grant.Overlap = 4.0/3, 4.0/3
	if err := (query{gpu: "H200", ranks: 4}).place(&a); err != nil || len(a.Ranks) != 4 {
		t.Errorf("%d ranks, %v", len(a.Ranks), err)
	}
}
