// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A file is written as a whole or not at all, keeps its mode, and replaces only a regular file.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "page.html")
	for _, text := range []string{"one", "two"} {
		must.OK(t, replaceFile(page, []byte(text), os.Open))
		if content, err := os.ReadFile(page); err != nil || string(content) != text {
			t.Errorf("%q, %v", content, err)
		}
	}
	must.OK(t, os.Chmod(page, 0o640))
	must.OK(t, replaceFile(page, []byte("three"), os.Open))
	if info, err := os.Stat(page); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	link, kept := filepath.Join(dir, "link"), filepath.Join(dir, "kept")
	must.OK(t, os.Symlink(page, link))
	must.OK(t, os.Mkdir(kept, 0o755))
	for _, path := range []string{link, kept, "/dev/null", filepath.Join(dir, "none/page.html")} {
		if err := replaceFile(path, []byte("x"), os.Open); err == nil || !strings.HasPrefix(err.Error(), "cannot write ") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	if content, err := os.ReadFile(page); err != nil || string(content) != "three" {
		t.Errorf("%q, %v", content, err)
	}
}

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
