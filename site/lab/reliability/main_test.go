// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestThePagesAreOfTheseLines checks that the committed pages are made of the committed lines.
func TestThePagesAreOfTheseLines(t *testing.T) {
	module := filepath.Join("..", "..", "..")
	pages, err := compose(module)
	if err != nil || len(pages) != 2 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for path, want := range pages {
		got, err := os.ReadFile(filepath.Join(module, path))
		if err != nil || string(got) != want {
			t.Errorf("%s is not what %s makes, %v: make reliability", path, raw, err)
		}
	}
}

func TestLinesOfOneTestAddUp(t *testing.T) {
	s, err := read("# Kills, again\n# GPUs: simulated\n# on: a Tuesday\n# It rained.\nTestA/job-1\t1000\t0\t3\nTestB\t1\t1\t1\tseed 7\nTestA/job-4\t20\t1\t4\nTestA/job-1 pairs\t5\t0\t0\n")
	if err != nil {
		t.Fatal(err)
	}
	got := s.text(map[string]string{"TestA": "It holds."}) + summary([]section{s})
	for _, want := range []string{"\n## Kills, again\n\nGPUs: simulated. Where and when: a Tuesday.\n\n* It rained.\n",
		"\n| `TestA` | 1020 | 1 | 7 | It holds. |\n",
		"\n| `TestB` | 1 | 1 | 1 |  |\n", "\n| `TestA` pairs | 5 | 0 | 0 | It holds. |\n", "\n`TestB`: seed 7\n",
		"\n| [Kills, again](measurements/reliability/README.md#kills-again) | 1,026 | 2 | simulated | a Tuesday |\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	for _, bad := range []string{"TestA\t1\t0\t3\n", "# Kills\n# GPUs: simulated\nTestA\t1\t0\t3\n", "# Kills\n# on: a Tuesday\nTestA\t1\t0\t3\n",
		"# Kills\n# GPUs: none\n# on: x\nTestA\t1\t0\n", "# Kills\n# GPUs: none\n# on: x\nTestA\tmany\t0\t1\n"} {
		if _, err := read(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestSoaksAreATable(t *testing.T) {
	soaks := soaksOf([]string{
		"seed 1, 100 of 200 jobs (an array being several, 115), 52 neighbours of cancelled ranks. Found: left behind 6, false drains 0. Faults: none, an array 4; kill -9 of a rank 2. It found one.",
		"seed 2, 50 of 50 jobs, 3 jobs begun anew. Found: left behind 0. Faults: kill -9 of a rank 7; reboot 1.",
		"seed 3, 20 of 20 jobs, 1 jobs started again. Found: left behind 0. Faults: reboot 2.",
	})
	got := soakTables(soaks)
	for _, want := range []string{"\n| seed | 1 | 2 | 3 |\n|---|---|---|---|\n| jobs | 100 | 50 | 20 |\n",
		"\n| jobs started again | – | 3 | 1 |\n", "\n| found: left behind | 6 | 0 | 0 |\n",
		"\n| fault: none, an array | 4 | – | – |\n| fault: kill -9 of a rank | 2 | 7 | – |\n| fault: reboot | – | 1 | 2 |\n", "\nSeed 1: It found one.\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	if other := soaksOf([]string{"neighbours lost: none of 4"}); other != nil {
		t.Errorf("read %+v from a text that is no soak", other)
	}
}

func TestAPageWithoutMarksIsRefused(t *testing.T) {
	if got, err := replace("a\n"+begin+"old\n"+end+"\nb\n", "new\n"); err != nil || got != "a\n"+begin+"new\n"+end+"\nb\n" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, page := range []string{"", begin, end} {
		if _, err := replace(page, "new\n"); err == nil {
			t.Errorf("%q: no error", page)
		}
	}
}
