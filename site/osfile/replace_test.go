// SPDX-License-Identifier: Apache-2.0

package osfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A folder is opened if only root can change it. A file in it is replaced as a whole. A link with the file's name is
// replaced and not followed.
func TestReplace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the folders must be owned by root")
	}
	top := t.TempDir()
	dir, victim := filepath.Join(top, "dir"), filepath.Join(top, "victim")
	for _, err := range []error{os.Mkdir(dir, 0o755), os.WriteFile(victim, []byte("precious"), 0o600),
		os.Symlink(victim, filepath.Join(dir, "file")), os.Symlink(dir, filepath.Join(top, "link"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenFolder(filepath.Join(top, "link")); !errors.Is(err, ErrNotRootOwned) {
		t.Errorf("a link: %v", err)
	}
	if _, err := OpenTrustedFolder(dir); !errors.Is(err, ErrNotRootOwned) { // a folder in /tmp
		t.Errorf("a folder below a folder that every user may write: %v", err)
	}
	folder, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	for _, content := range []string{"first", "2"} {
		if err := (File{Content: []byte(content), Mode: 0o640, Sync: true}).Write(folder, "file"); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(filepath.Join(dir, "file"))
		if got, _ := os.ReadFile(filepath.Join(dir, "file")); err != nil || info.Mode() != 0o640 || string(got) != content {
			t.Errorf("%v, %v: %q", info, err, got)
		}
	}
	if got, _ := os.ReadFile(victim); string(got) != "precious" {
		t.Errorf("the victim is %q", got)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("the folder contains: %v, %v", names, err)
	}
	if err := os.Chown(dir, 2001, 2001); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFolder(dir); !errors.Is(err, ErrNotRootOwned) {
		t.Errorf("another user's folder: %v", err)
	}
}
