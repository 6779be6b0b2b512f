// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The difference is that of diff -u, without characters that a terminal obeys. A missing file is an empty one.
func TestUnified(t *testing.T) {
	old := filepath.Join(t.TempDir(), "-old")
	must.OK(t, os.WriteFile(old, []byte("a\nb\nc\nd\ne\n"), 0o600))
	head := "--- " + old + "\n+++ new\n"
	for text, want := range map[string]string{
		"a\nb\nc\nd\nE\x1b\x00\tx\nf": head +
			"@@ -2,4 +2,5 @@\n b\n c\n d\n-e\n+E??    x\n+f\n\\ No newline at end of file\n",
		"a\nb\nc\nd\ne\n": "",
	} {
		if got := unified(old, "new", text); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	if got := unified("/nowhere", "new", "a\n"); got != "--- /nowhere\n+++ new\n@@ -0,0 +1 @@\n+a\n" {
		t.Errorf("of no file: %s", got)
	}
	if got := unified(t.TempDir(), "new", "a\n"); !strings.HasPrefix(got, "cannot print the difference: ") {
		t.Errorf("of a folder: %s", got)
	}
}
