// SPDX-License-Identifier: Apache-2.0

package osfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"golang.org/x/sys/unix"
)

// A file that a crash must not lose is on the disk before its name is, and then the folder is. No other file waits.
func TestWhatIsSynced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, c := range []struct {
		what string
		call func() error
		want string
	}{
		{"a write", func() error { return File{Mode: 0o600, Sync: true, Alone: true}.WriteTo(path) }, ".file.new " + filepath.Base(dir)},
		{"a write that may be lost", func() error { return File{Mode: 0o600}.WriteTo(path) }, ""},
		{"a folder", func() error { return SyncFolder(dir) }, filepath.Base(dir)},
	} {
		if got := strings.Join(testproc.Synced(t, c.call), " "); got != c.want {
			t.Errorf("%s: synced %q, want %q", c.what, got, c.want)
		}
	}
}

// What is refused, or fails, leaves no file open.
func TestFailuresCloseTheirFiles(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	must.OK(t, errors.Join(os.Mkdir(path("open"), 0o700), os.Chmod(path("open"), 0o777), os.Mkdir(path("full"), 0o700),
		os.WriteFile(path("open/file"), nil, 0o666), os.Mkdir(path("full/file"), 0o700), os.Symlink("open", path("link"))))
	list := func(open func(string) (*os.File, error)) func(string) error {
		return func(path string) error { _, err := open(path); return err }
	}
	for what, call := range map[string]func() error{
		"a folder of every user":       func() error { return list(OpenFolder)(path("open")) },
		"a link":                       func() error { return list(OpenFolder)(path("link")) },
		"a folder below /tmp":          func() error { return list(OpenTrustedFolder)(path("full")) },
		"a missing folder":             func() error { return list(OpenTrustedFolder)("/usr/none/below") },
		"a write over a folder":        func() error { return File{Mode: 0o600}.WriteTo(path("full/file")) },
		"a folder that takes no file":  func() error { return File{Mode: 0o600}.WriteTo("/proc/file") },
		"a file of every user":         func() error { _, err := ReadOwn(path("open/file"), 4242); return err },
		"a folder as a file":           func() error { _, err := ReadAny(path("full")); return err },
		"a list of a folder of others": func() error { _, err := ListRootOwned(path("open")); return err },
	} {
		if leaks := testproc.Leaks(t, func() {
			if call() == nil {
				t.Errorf("%s: no error", what)
			}
		}); leaks > 0 {
			t.Errorf("%s: %d files are left open", what, leaks)
		}
	}
}

// A folder is opened if only root can change it. A file in it is replaced as a whole. A link with the file's name is
// replaced and not followed.
func TestReplace(t *testing.T) {
	must.Root(t)
	top := t.TempDir()
	dir, victim := filepath.Join(top, "dir"), filepath.Join(top, "victim")
	for _, err := range []error{os.Mkdir(dir, 0o755), os.WriteFile(victim, []byte("precious"), 0o600),
		os.Symlink(victim, filepath.Join(dir, "file")), os.Symlink(dir, filepath.Join(top, "link"))} {
		must.OK(t, err)
	}
	if _, err := OpenFolder(filepath.Join(top, "link")); !errors.Is(err, ErrNotRootOwned) {
		t.Errorf("a link: %v", err)
	}
	if _, err := OpenTrustedFolder(dir); !errors.Is(err, ErrNotRootOwned) { // a folder in /tmp
		t.Errorf("a folder below a folder that every user may write: %v", err)
	}
	folder, err := OpenFolder(dir)
	must.OK(t, err)
	defer folder.Close()
	for _, content := range []string{"first", "2"} {
		must.OK(t, (File{Content: []byte(content), Mode: 0o640, Sync: true}).Write(folder, "file"))
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
	must.OK(t, os.Chown(dir, 2001, 2001))
	if _, err := OpenFolder(dir); !errors.Is(err, ErrNotRootOwned) {
		t.Errorf("another user's folder: %v", err)
	}
}

// The error of a write names the file system and what it lacks: blocks, inodes or write access.
func TestExplainFull(t *testing.T) {
	must.Root(t)
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

// What another user puts in the folder's place is not opened: the open of a fifo waits, and that of a terminal gives
// the user the keyboard of this process.
func TestWriteToOpensFoldersAlone(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	must.OK(t, unix.Mkfifo(fifo, 0o600))
	result := make(chan error, 1)
	go func() { result <- File{Mode: 0o600}.WriteTo(filepath.Join(fifo, "file")) }()
	select {
	case err := <-result:
		if !errors.Is(err, unix.ENOTDIR) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for a writer")
	}
}
