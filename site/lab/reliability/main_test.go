// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestThePageIsOfTheseLines checks that the committed page is made of the committed lines.
func TestThePageIsOfTheseLines(t *testing.T) {
	module := filepath.Join("..", "..", "..")
	want, err := compose(module)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(module, page))
	if err != nil || string(got) != want {
		t.Errorf("%s is not what %s makes, %v: make reliability", page, raw, err)
	}
}

func TestLinesOfOneTestAddUp(t *testing.T) {
	s, err := read("# Kills, again\n# GPUs: simulated\n# on: a Tuesday\n# It rained.\n" +
		"TestA/job-1\t1000\t0\t3\nTestB\t1\t1\t1\tseed 7\nTestA/job-4\t20\t1\t4\nTestA/job-1 pairs\t5\t0\t0\n")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := list([]section{s}), "* Kills, again (GPUs: simulated): 1,026, 2\n"; got != want || len(s.rows) != 3 {
		t.Errorf("%d rows, and the list is %q, want %q", len(s.rows), got, want)
	}
	for _, bad := range []string{"TestA\t1\t0\t3\n", "# Kills\n# GPUs: simulated\nTestA\t1\t0\t3\n", "# Kills\n# on: a Tuesday\nTestA\t1\t0\t3\n",
		"# Kills\n# GPUs: none\n# on: x\nTestA\t1\t0\n", "# Kills\n# GPUs: none\n# on: x\nTestA\tmany\t0\t1\n"} {
		if _, err := read(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}
