// SPDX-License-Identifier: Apache-2.0

// Package osfile opens, locks and writes files that root trusts: it follows no link that a user can make, and a file that
// it writes is whole or absent.
package osfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenFolder opens a folder that only root can change, and follows no link at its last element. The error wraps
// ErrNotRootOwned if another user could put a file into the folder.
func OpenFolder(path string) (*os.File, error) {
	return openFolder(unix.AT_FDCWD, path, path)
}

// OpenTrustedFolder is OpenFolder, and it checks every folder above in the same way. So only root decides which
// folder the path names.
func OpenTrustedFolder(path string) (*os.File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("cannot open %s: give an absolute path", path)
	}
	dir, err := OpenFolder("/")
	elements := strings.SplitSeq(filepath.Clean(path), "/")
	path = ""
	for name := range elements {
		if name == "" || err != nil {
			continue
		}
		path += "/" + name
		above := dir
		dir, err = openFolder(int(above.Fd()), name, path)
		above.Close()
	}
	return dir, err
}

func openFolder(above int, name, path string) (*os.File, error) {
	fd, err := unix.Openat(above, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("cannot open %s: %w: it is a symbolic link, or not a folder", path, ErrNotRootOwned)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "cannot open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		dir.Close()
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	if why := writableByOthers(st, 0); why != "" {
		dir.Close()
		return nil, fmt.Errorf("cannot open %s: %w: %s", path, ErrNotRootOwned, why)
	}
	return dir, nil
}

// File is a file to be written. A reader sees the old file, the whole new one or none.
type File struct {
	Content []byte
	Mode    fs.FileMode
	GID     uint32 // the file's group; 0 for the writer's
	Reader  uint32 // a user who may read a file of mode 0600, by an ACL; 0 for none. Without ACLs only root may read it
	Sync    bool   // a crash of the node does not lose the file
	Alone   bool   // it has one writer at a time: its temporary file is Temporary, and the next writer overwrites it
}

// Temporary is the path at which the only writer of a file begins it.
func Temporary(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

// WriteTo writes the file to a path in a folder that no other user can change.
func (f File) WriteTo(path string) error {
	dir, err := os.OpenFile(filepath.Dir(path), os.O_RDONLY|unix.O_DIRECTORY, 0) // and no fifo or terminal instead
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	defer dir.Close()
	return f.Write(dir, filepath.Base(path))
}

// Write writes the file into a folder that OpenFolder has opened, so no other user can put a link there. Several
// processes may write the same file, except if it is Alone: each has a temporary file, and the last rename wins.
func (f File) Write(dir *os.File, name string) error {
	path := filepath.Join(dir.Name(), name)
	temporary := fmt.Sprintf(".draft-%s-%d", name, os.Getpid())
	if f.Alone {
		temporary = filepath.Base(Temporary(path))
	}
	err := f.create(int(dir.Fd()), temporary)
	if err == nil {
		err = unix.Renameat(int(dir.Fd()), temporary, int(dir.Fd()), name)
	}
	if err != nil {
		err = ExplainFull(dir.Name(), err)
		_ = unix.Unlinkat(int(dir.Fd()), temporary, 0) // on a full disk its blocks are needed
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	if !f.Sync {
		return nil
	}
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

// SyncFolder waits until what was made and removed in a folder is on the disk.
func SyncFolder(path string) error {
	dir, err := os.Open(path)
	if err == nil {
		err = errors.Join(dir.Sync(), dir.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot sync %s: %w", path, err)
	}
	return nil
}

// create makes a new file. If a file with its name exists, a killed process has left it.
func (f File) create(dir int, name string) error {
	_ = unix.Unlinkat(dir, name, 0)
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	if f.GID != 0 {
		err = file.Chown(-1, int(f.GID))
	}
	if err = errors.Join(err, file.Chmod(f.Mode), letRead(fd, f.Reader)); err == nil {
		_, err = file.Write(f.Content)
	}
	if err == nil && f.Sync {
		err = file.Sync()
	}
	return errors.Join(err, file.Close()) // a file system on the network tells here that it is full
}

// The entries of an ACL in the form of the kernel's extended attribute: a tag, permissions and an id.
const (
	aclVersion                                               = 2
	aclOwner, aclUser, aclGroup, aclMask, aclEveryone        = 0x01, 0x02, 0x04, 0x10, 0x20
	aclRead, aclReadWrite, aclNone                    uint16 = 4, 6, 0
	aclNoID                                           uint32 = 1<<32 - 1
)

// letRead lets one user read a file of mode 0600. A file system without ACLs leaves the file as it is.
func letRead(fd int, uid uint32) error {
	if uid == 0 {
		return nil
	}
	acl := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range []struct {
		tag, may uint16
		id       uint32
	}{
		{aclOwner, aclReadWrite, aclNoID}, {aclUser, aclRead, uid}, {aclGroup, aclNone, aclNoID},
		{aclMask, aclRead, aclNoID}, {aclEveryone, aclNone, aclNoID},
	} {
		acl = binary.LittleEndian.AppendUint16(acl, e.tag)
		acl = binary.LittleEndian.AppendUint16(acl, e.may)
		acl = binary.LittleEndian.AppendUint32(acl, e.id)
	}
	if err := unix.Fsetxattr(fd, "system.posix_acl_access", acl, 0); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("cannot let uid %d read it: %w", uid, err)
	}
	return nil
}

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
