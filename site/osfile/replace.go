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

// Replace writes a file into a folder that OpenFolder has opened. A reader sees the old file or the complete new
// file. No other user can put a link into the folder. Several processes may replace the same file: each process has a
// temporary file with its own pid, and the last rename wins.
func Replace(dir *os.File, name string, content []byte, mode fs.FileMode) error {
	return replace(dir, name, newFile{content: content, mode: mode, sync: true})
}

// ReplaceForUser is Replace for a file of root's that one user may read, by an ACL. In a file system without ACLs, only
// root may read it. It does not wait for the disk: a crash of the node may lose the file.
func ReplaceForUser(dir *os.File, name string, content []byte, uid uint32) error {
	return replace(dir, name, newFile{content: content, mode: 0o600, reader: uid})
}

// newFile is a file to be written.
type newFile struct {
	content []byte
	mode    fs.FileMode
	reader  uint32 // a user who may read it; 0 for none
	sync    bool
}

func replace(dir *os.File, name string, f newFile) error {
	temporary := fmt.Sprintf(".draft-%s-%d", name, os.Getpid())
	err := writeTemporary(dir, temporary, f)
	if err == nil {
		err = unix.Renameat(int(dir.Fd()), temporary, int(dir.Fd()), name)
	}
	if err != nil {
		err = ExplainFull(dir.Name(), err)
		_ = unix.Unlinkat(int(dir.Fd()), temporary, 0)
		return fmt.Errorf("cannot write %s: %w", filepath.Join(dir.Name(), name), err)
	}
	if !f.sync {
		return nil
	}
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("cannot write %s: %w", filepath.Join(dir.Name(), name), err)
	}
	return nil
}

// writeTemporary writes a new file. If a file with its name exists, a killed process with the same pid has left it.
func writeTemporary(dir *os.File, name string, f newFile) error {
	_ = unix.Unlinkat(int(dir.Fd()), name, 0)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	if err := file.Chmod(f.mode); err != nil {
		return err
	}
	if err := letRead(fd, f.reader); err != nil {
		return err
	}
	if _, err := file.Write(f.content); err != nil || !f.sync {
		return err
	}
	return file.Sync()
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
