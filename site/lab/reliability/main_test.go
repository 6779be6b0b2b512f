// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The committed page is what the committed lines make.
func TestThePageIsOfTheseLines(t *testing.T) {
	module := filepath.Join("..", "..", "..")
	want, err := compose(module)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(module, document))
	if err != nil || string(got) != want {
		t.Errorf("%s is not what %s makes, %v: make reliability", document, raw, err)
	}
}

func TestLinesOfOneTestAddUp(t *testing.T) {
	s, err := read("# Kills\n# on a Tuesday\nTestA/job-1\t10\t0\t3\nTestB\t1\t1\t1\tseed 7\nTestA/job-4\t20\t1\t4\nTestA/job-1 pairs\t5\t0\t0\n")
	if err != nil {
		t.Fatal(err)
	}
	got := s.text(map[string]string{"TestA": "It holds."})
	for _, want := range []string{"\n## Kills\n\non a Tuesday\n", "\n| `TestA` | 30 | 1 | 7 | It holds. |\n", "\n| `TestB` | 1 | 1 | 1 |  |\n",
		"\n| `TestA` pairs | 5 | 0 | 0 | It holds. |\n", "\n`TestB`: seed 7\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	for _, bad := range []string{"TestA\t1\t0\t3\n", "# Kills\nTestA\t1\t0\n", "# Kills\nTestA\tmany\t0\t1\n"} {
		if _, err := read(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
