// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/state"
)

func TestFindingsText(t *testing.T) {
	found := []state.Finding{{Kind: "mode-differs", Where: "job 7, GPU 0 (GPU-1)",
		What: strings.Repeat("word ", 20), Fix: "nvidia-smi -i GPU-1 -c DEFAULT"}}
	want := "\n1 finding\n! mode-differs  job 7, GPU 0 (GPU-1)\n" +
		"    word word word word word word word word word word word word word word word\n    word word word word word\n" +
		"    fix: nvidia-smi -i GPU-1 -c DEFAULT\n"
	if got := findingsText(found, command.Screen{Columns: 80}); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := findingsText(nil, command.Screen{Columns: 80}); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

// A command of a repair stands alone on its line, and its comment on the line before.
func TestFixText(t *testing.T) {
	for do, want := range map[string]string{
		"remove it":             "    fix: remove it\n",
		"nvidia-smi -c DEFAULT": "    fix: nvidia-smi -c DEFAULT\n",
		"end it: mpsctl reap":   "    fix: end it:\n             mpsctl reap\n",
		"see it: ps -fp 1; a rank is there; only then: kill -9 1": "    fix: see it:\n             ps -fp 1\n" +
			"         a rank is there\n         only then:\n             kill -9 1\n",
	} {
		if got := fixText(do); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
}

// isFix reports whether a line is of a repair. Repairs are not wrapped, because a person copies their commands.
func isFix(line string) bool {
	return strings.HasPrefix(line, "    fix: ") || strings.HasPrefix(line, "         ")
}
