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
		must.OK(t, replaceFile(page, []byte(text)))
		if content, err := os.ReadFile(page); err != nil || string(content) != text {
			t.Errorf("%q, %v", content, err)
		}
	}
	must.OK(t, os.Chmod(page, 0o640))
	must.OK(t, replaceFile(page, []byte("three")))
	if info, err := os.Stat(page); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	link, kept := filepath.Join(dir, "link"), filepath.Join(dir, "kept")
	must.OK(t, os.Symlink(page, link))
	must.OK(t, os.Mkdir(kept, 0o755))
	for _, path := range []string{link, kept, "/dev/null", filepath.Join(dir, "none/page.html")} {
		if err := replaceFile(path, []byte("x")); err == nil || !strings.HasPrefix(err.Error(), "cannot write ") {
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
