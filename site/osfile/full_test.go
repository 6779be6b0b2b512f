// SPDX-License-Identifier: Apache-2.0

package osfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The error of a write names the file system and what it lacks: blocks, inodes or write access.
func TestExplainFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("file systems are mounted by root")
	}
	for name, c := range map[string]struct {
		options string
		flags   uintptr
		want    []string
		not     string
		is      error
	}{
		"blocks": {"size=4k", 0, []string{"no space left on device: the file system at DIR is full: free space: df DIR"}, "inode", unix.ENOSPC},
		"inodes": {"nr_inodes=1", 0,
			[]string{"no inode left: the file system at DIR has no room for another file: remove files: df -i DIR"}, "no space", unix.ENOSPC},
		"read-only": {"size=4k", unix.MS_RDONLY, []string{"read-only file system: the file system at DIR can only be read: see dmesg"}, "full", unix.EROFS},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("small", dir, "tmpfs", c.flags, c.options); err != nil {
				t.Skipf("cannot mount a tmpfs: %v", err)
			}
			defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
			path := filepath.Join(dir, "file")
			err := ExplainFull(path, os.WriteFile(path, make([]byte, 10_000), 0o600))
			for _, want := range c.want {
				if want = strings.ReplaceAll(want, "DIR", dir); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), c.not) {
					t.Errorf("got  %v\nwant %s, without %q", err, want, c.not)
				}
			}
			if !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
		})
	}
	if other := fmt.Errorf("other: %w", unix.EIO); ExplainFull("/x", other) != other {
		t.Error("another error is changed")
	}
}
