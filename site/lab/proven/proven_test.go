// SPDX-License-Identifier: Apache-2.0

package proven_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/proven"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
)

const known = "../../doctor/known.json"

// The section Drivers of docs/measurements.md is made from known.json.
func TestTheDriversAreMade(t *testing.T) {
	const page = "../../../docs/measurements.md"
	f, err := proven.Read(known)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile(`(?s)(<!-- from known\.json -->\n).*?(<!-- to here -->)`)
	if !section.Match(text) {
		t.Fatalf("%s has no section between marks", page)
	}
	golden.Compare(t, page, section.ReplaceAllString(string(text), "${1}"+f.Table()+"${2}"))
}

// Every row of known.json is whole: a version of its branch, a day, and data that exist.
func TestKnownIsWhole(t *testing.T) {
	f, err := proven.Read(known)
	if err != nil || len(f.Proven) == 0 || len(f.Patched) == 0 || f.Source == "" {
		t.Fatalf("%+v, %v", f, err)
	}
	page, err := os.ReadFile("../../../docs/measurements.md")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`^[1-9][0-9]+(\.[0-9]+)+$`)
	day := func(text string) {
		if _, err := time.Parse(time.DateOnly, text); err != nil {
			t.Error(err)
		}
	}
	day(f.Date)
	for _, d := range f.Proven {
		day(d.Date)
		if !version.MatchString(d.Driver) || d.GPU == "" || d.Mode == "" || d.Ran == "" {
			t.Errorf("half a row: %+v", d)
		}
		if !strings.HasPrefix(d.Data, "https://") && !strings.Contains(string(page), "\n## "+d.Data+"\n") {
			t.Errorf("docs/measurements.md has no section %s", d.Data)
		}
	}
	seen := map[string]bool{}
	for _, p := range f.Patched {
		known := p.What == "driver" || p.What == "Slurm"
		older := strings.Contains(p.Source, "no release of its branch")
		if !known || !version.MatchString(p.First) || p.Own() == older || p.Source == "" || p.Branches == "" {
			t.Errorf("half a row: %+v", p)
		}
		for _, branch := range strings.Fields(p.Branches) {
			if seen[p.What+branch] || older && branch >= p.First {
				t.Errorf("a branch has one row: %+v", p)
			}
			seen[p.What+branch] = true
		}
	}
}

// A field that nothing reads is a mistake.
func TestReadRefusesUnknownFields(t *testing.T) {
	file := filepath.Join(t.TempDir(), "known.json")
	for text, good := range map[string]bool{`{"date": "2026-11-28"}`: true, `{"dates": ""}`: false, `{`: false} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := proven.Read(file); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}
