// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

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
		r, err := p.run(t.Context(), folder)
		if err != nil {
			t.Fatal(err)
		}
		r.took = 90 * time.Second
		results = append(results, r)
	}
	page := page("abc123", time.Unix(0, 0), results)
	for _, want := range []string{
		"Commit abc123, 1970-01-01 00:00 UTC, ", "| good | ", "| 0 | 1.5 | 1 |\n", "| 3 | 1.5 | 0 |\n", "| 124 | 1.5 | 0 |\n",
		"| sum | | | 4.5 | |\n",
		"Failed, and passed alone, in \"good\":\n\n* site/x TestA/one: x_test.go:12: left behind: a guard\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}
