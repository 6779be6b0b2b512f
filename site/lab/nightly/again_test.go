// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/hold"
)

// A part runs below a holder, which is this executable.
func TestMain(m *testing.M) {
	hold.Begin()
	os.Exit(m.Run())
}

// events are two runs of two tests.
var events = strings.ReplaceAll(`{"Action":"run","Package":"PKG","Test":"TestA"}
{"Action":"run","Package":"PKG","Test":"TestA/one"}
{"Action":"output","Package":"PKG","Test":"TestA/one","Output":"    sweep.go:97: to run it again: go test\n"}
{"Action":"output","Package":"PKG","Test":"TestA/one","Output":"    x_test.go:12: left behind: a guard\n"}
{"Action":"fail","Package":"PKG","Test":"TestA/one"}
{"Action":"fail","Package":"PKG","Test":"TestA"}
{"Action":"run","Package":"PKG","Test":"TestB"}
{"Action":"fail","Package":"PKG","Test":"TestB"}
{"Action":"fail","Package":"PKG"}
{"Action":"run","Package":"PKG","Test":"TestA"}
{"Action":"pass","Package":"PKG","Test":"TestA/one"}
{"Action":"pass","Package":"PKG","Test":"TestA"}
{"Action":"pass","Package":"PKG"}
`, "PKG", "github.com/slurm-mps/slurm-mps/site/x")

// A test that fails and then passes is named with its cause. One that fails twice is no such test.
func TestAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(file, []byte(events), 0o644); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	if err := printAgain(&said, []string{file}); err != nil {
		t.Fatal(err)
	}
	want := "failed, and passed alone: site/x TestA/one: x_test.go:12: left behind: a guard\ntests that ran again: 1\n"
	if said.String() != want {
		t.Errorf("got\n%swant\n%s", said.String(), want)
	}
	if printAgain(&said, nil) == nil || printAgain(&said, []string{file + "x"}) == nil {
		t.Error("no file is no error")
	}
}

// A night takes less than six hours, also if each part takes all of its time. A job of the workflow may take six.
func TestANightIsShort(t *testing.T) {
	sum := 0
	for _, p := range parts {
		sum += p.minutes
	}
	if sum > 6*60-10 {
		t.Errorf("the parts may take %d minutes", sum)
	}
}

// The page has each part with its exit code, and the tests that ran again. A part that takes too long is ended, with
// what it has started.
func TestThePage(t *testing.T) {
	folder := t.TempDir()
	var results []result
	for _, p := range []part{
		{"good", `cp events "${EVENTS%.json}.more.json"; test "$NIGHTLY" = 1`, 1}, {"bad", "exit 3", 1}, {"too long", "sleep 100 & wait", 0},
	} {
		if err := os.WriteFile(filepath.Join(folder, "events"), []byte(events), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Chdir(folder)
		r, err := p.run(t.Context(), folder, "a1")
		if err != nil {
			t.Fatal(err)
		}
		r.Took = 90 * time.Second
		results = append(results, r)
	}
	page := page("abc123", results)
	for _, want := range []string{
		"Commit abc123, ", "| good | ", "| 0 | 1.5 | 1 |\n", "| 3 | 1.5 | 0 |\n", "| 124 | 1.5 | 0 |\n",
		"| sum | | | | 4.5 | |\n",
		"Failed, and passed alone, in \"good\":\n\n* site/x TestA/one: x_test.go:12: left behind: a guard\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// A night goes on where it stopped at the same commit: a part that failed, or was of another commit, runs again.
func TestPassedAt(t *testing.T) {
	lines := `{"Commit":"a1","Name":"check","Code":0}
{"Commit":"a1","Name":"walk","Code":2}
{"Commit":"b2","Name":"soak","Code":0}
{"Commit":"a1-dirty","Name":"fuzzers","Code":0}
`
	for commit, want := range map[string][]string{"a1": {"check"}, "b2": {"soak"}, "a1-dirty": nil, "c3": nil} {
		passed, err := passedAt(commit, []byte(lines))
		if got := slices.Sorted(maps.Keys(passed)); err != nil || !slices.Equal(got, want) {
			t.Errorf("at %s %q have passed, want %q; %v", commit, got, want, err)
		}
	}
	if _, err := passedAt("a1", []byte("no JSON\n")); err == nil {
		t.Error("a torn line is no error")
	}
}
