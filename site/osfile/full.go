// SPDX-License-Identifier: Apache-2.0

package osfile

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// fullError is a failed write with the reason that its file system has.
type fullError struct {
	error
	text string
}

func (e fullError) Error() string { return e.text }
func (e fullError) Unwrap() error { return e.error }

// ExplainFull adds to the error of a write which file system lacks room or inodes, and the repair. The kernel has one
// error for a file system without free blocks and for one without free inodes. The caller has not yet removed anything.
// Other errors are returned unchanged, and errors.Is finds the same ones.
func ExplainFull(path string, err error) error {
	if errors.Is(err, unix.EROFS) {
		return fullError{err, fmt.Sprintf("%v: the file system at %s can only be read: "+
			"see dmesg, then mount it with write access", err, mountOf(path))}
	}
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	mount := mountOf(path)
	var st unix.Statfs_t
	if unix.Statfs(mount, &st) == nil && st.Files > 0 && st.Ffree == 0 {
		text := strings.ReplaceAll(err.Error(), unix.ENOSPC.Error(), "no inode left")
		return fullError{err, fmt.Sprintf("%s: the file system at %s has no room for another file: "+
			"remove files: df -i %s", text, mount, mount)}
	}
	return fullError{err, fmt.Sprintf("%v: the file system at %s is full: free space: df %s", err, mount, mount)}
}

// mountOf returns where the file system of a path is mounted. The path need not exist.
func mountOf(path string) string {
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		var st, above unix.Stat_t
		err1, err2 := unix.Lstat(path, &st), unix.Lstat(filepath.Dir(path), &above)
		if path == "/" || path == "." || err1 == nil && err2 == nil && st.Dev != above.Dev {
			return path
		}
	}
}
