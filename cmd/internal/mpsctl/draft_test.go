// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A page is written as a whole or not at all, and it replaces only a regular file.
func TestDraft(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "page.html")
	for _, text := range []string{"one", "two"} {
		if err := writeFile(page, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if content, err := os.ReadFile(page); err != nil || string(content) != text {
			t.Errorf("%q, %v", content, err)
		}
	}
	link, kept := filepath.Join(dir, "link"), filepath.Join(dir, "kept")
	if err := os.Symlink(page, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(kept, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, kept, "/dev/null", filepath.Join(dir, "none/page.html")} {
		if err := writeFile(path, []byte("x")); err == nil || !strings.HasPrefix(err.Error(), "cannot write ") {
			t.Errorf("%s: %v", path, err)
		}
	}
	d, err := NewDraft(filepath.Join(dir, "dropped"))
	if err != nil {
		t.Fatal(err)
	}
	d.Drop()
	names, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(names) > 0 {
		t.Errorf("left: %q, %v", names, err)
	}
	if content, err := os.ReadFile(page); err != nil || string(content) != "two" {
		t.Errorf("%q, %v", content, err)
	}
}
