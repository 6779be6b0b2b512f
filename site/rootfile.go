// SPDX-License-Identifier: Apache-2.0

package site

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrNotRootOwned means that a file that only root may write could have been written by somebody else.
var ErrNotRootOwned = errors.New("not root's own")

// maxOwned bounds the files that root reads: the largest, a policy of hundreds of rules, is far below it.
const maxOwned = 4 << 20

// ReadRootOwned reads a whole file that only root can have written: a regular one, owned by root, writable by nobody else,
// and not behind a link. The error wraps fs.ErrNotExist where there is none, ErrNotRootOwned where it may be another's.
func ReadRootOwned(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("cannot read %s: %w: it is a symbolic link", path, ErrNotRootOwned)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "cannot read", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if why := notRootOwned(st); why != "" {
		return nil, fmt.Errorf("cannot read %s: %w: %s", path, ErrNotRootOwned, why)
	}
	content, err := ReadOpen(fd, maxOwned+1)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if len(content) > maxOwned {
		return nil, fmt.Errorf("cannot read %s: larger than %d bytes", path, maxOwned)
	}
	return content, nil
}

func notRootOwned(st unix.Stat_t) string {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "it is not a regular file"
	}
	return writableByOthers(st)
}

// writableByOthers says how somebody else than root could change it.
func writableByOthers(st unix.Stat_t) string {
	switch {
	case st.Uid != 0:
		return fmt.Sprintf("its owner is uid %d", st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Sprintf("its mode %04o lets others write", st.Mode&0o7777)
	}
	return ""
}

// ListRootOwned lists the names in a folder that only root can change, in order. The error wraps fs.ErrNotExist where there
// is none, ErrNotRootOwned where another could have put a file there or taken one away.
func ListRootOwned(path string) ([]string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "cannot list", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("cannot list %s: %w", path, err)
	}
	if why := writableByOthers(st); why != "" {
		return nil, fmt.Errorf("cannot list %s: %w: %s", path, ErrNotRootOwned, why)
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("cannot list %s: %w", path, err)
	}
	slices.Sort(names)
	return names, nil
}
