// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

const (
	// emptyTime is how long Empty works. A file system has 16,384 files at most. What is left then is held.
	emptyTime = 3 * time.Second
	// maxFiles limits the files without a name that Empty finds, maxOpen those that it has open at once, maxTries the
	// tries to be faster than their writers, and maxScans the searches for such files.
	maxFiles, maxOpen, maxTries, maxScans = 262144, 512, 2000, 3
)

// errNoTime means that a file system could not be emptied in time.
var errNoTime = errors.New("no time is left")

// Empty empties a file system of a closed job, as far as it can within emptyTime. run is the folder of a store, and
// name that of the file system below held. A process may have its files open, write to them, and make others, until
// the limits of the file system are as low as what is in use.
func Empty(run, name string) error {
	if filepath.Base(name) != name || name == ".." {
		return fmt.Errorf("cannot empty %q: it is not the name of a file system", name)
	}
	dir := filepath.Join(run, "held", name)
	used, err := shrink(dir)
	if err != nil {
		return err
	}
	top, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("cannot empty file system: %w", err)
	}
	defer top.Close()
	folder, err := top.Open(".")
	if err != nil {
		return fmt.Errorf("cannot empty file system: %w", err)
	}
	defer folder.Close()
	own := &ownFiles{dir: dir, fd: int(folder.Fd()), dev: used.dev, end: time.Now().Add(emptyTime)}
	for range maxScans {
		err = (&tree{top: top, own: own}).clear()
		if used, err := shrink(dir); err == nil && used.blocks == 0 && used.files <= spareFiles || !own.goesOn() {
			break
		}
		own.emptyOpen()
	}
	return err
}

// ownFiles are the files of a job's own file system.
type ownFiles struct {
	dir string
	fd  int    // the folder at its top
	dev uint64 // its device
	end time.Time
}

// goesOn reports whether there is time left.
func (o *ownFiles) goesOn() bool { return time.Now().Before(o.end) }

// truncate frees the pages of a file with a name, because a process may have it open. The folders above it are root's,
// so it is what the listing said.
func (o *ownFiles) truncate(path string) {
	var st unix.Stat_t
	if unix.Fstatat(o.fd, path, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Blocks == 0 {
		return
	}
	fd, err := unix.Openat(o.fd, path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // a process has a lease on it
	}
	defer unix.Close(fd)
	if o.has(fd) {
		_ = unix.Ftruncate(fd, 0)
	}
}

// has reports whether an open file is a regular file of the file system.
func (o *ownFiles) has(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Dev == o.dev && st.Mode&unix.S_IFMT == unix.S_IFREG
}

// emptyOpen empties the files that have no name any more and that a process has open or mapped.
func (o *ownFiles) emptyOpen() {
	ctx, cancel := context.WithDeadline(context.Background(), o.end)
	defer cancel()
	for paths := range slices.Chunk(proc.FilesOn(ctx, o.dev, maxFiles), maxOpen) {
		o.emptyAtOnce(paths)
	}
}

// emptyAtOnce empties open files. A process may write again at once, so the limit is set directly after.
func (o *ownFiles) emptyAtOnce(paths []string) {
	var files []int
	defer func() {
		for _, fd := range files {
			unix.Close(fd)
		}
	}()
	for _, path := range paths {
		if fd, err := o.open(path); err == nil {
			files = append(files, fd)
		}
	}
	for range maxTries {
		for _, fd := range files {
			_ = unix.Ftruncate(fd, 0)
			clearAttributes(fd)
		}
		_, _ = shrink(o.dir)
		if !slices.ContainsFunc(files, hasPages) || !o.goesOn() {
			return
		}
	}
}

func hasPages(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Blocks > 0
}

// open opens a file of the file system that is open in another process. It does so by the file's handle, through root's
// own mount: so it cannot open a file of another file system, whatever the process does, nor does a read-only mount of
// the process matter.
func (o *ownFiles) open(path string) (fd int, err error) {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return -1, err
	}
	fd, err = unix.OpenByHandleAt(o.fd, handle, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC)
	if err == nil && !o.has(fd) {
		unix.Close(fd)
		return -1, fs.ErrNotExist
	}
	return fd, err
}

// clearAttributes removes the extended attributes of a file, which take memory of the file system (Linux 6.6).
func clearAttributes(fd int) {
	var names [64 << 10]byte
	n, err := unix.Flistxattr(fd, names[:])
	for err == nil && n > 0 {
		name, rest, _ := strings.Cut(string(names[:n]), "\x00")
		_ = unix.Fremovexattr(fd, name)
		n = copy(names[:], rest)
	}
}
