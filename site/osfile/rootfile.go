// SPDX-License-Identifier: Apache-2.0

package osfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// ErrNotRootOwned means that another user could have written a file that only root may write.
var ErrNotRootOwned = errors.New("not root's own")

// maxOwned bounds the files that root reads. The largest is a policy of hundreds of rules, which is far smaller.
const maxOwned = 4 << 20

// ReadRootOwned reads a whole regular file that is owned by root, writable only by root, and not a link. The error
// wraps fs.ErrNotExist if there is no file, and ErrNotRootOwned if another user could have written the file.
func ReadRootOwned(path string) ([]byte, error) { return readOwned(path, 0, false) }

// ReadOwn is ReadRootOwned for a file of any user.
func ReadOwn(path string, owner uint32) ([]byte, error) { return readOwned(path, owner, false) }

// ReadRootOwnedInContainer is ReadRootOwned for a program that a user runs. In a user namespace without the node's
// root, Unmapped is the owner of root's files. So the file of another unmapped user is accepted there. Such a user
// cannot write into root's folders, and the namespace's owner could mount any file.
func ReadRootOwnedInContainer(path string) ([]byte, error) {
	return readOwned(path, 0, true)
}

// Unmapped is the owner of the files of all users that a user namespace does not have (kernel.overflowuid).
const Unmapped = 65534

func readOwned(path string, owner uint32, container bool) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	whose := map[bool]error{true: ErrNotRootOwned, false: fmt.Errorf("not uid %d's own", owner)}[owner == 0]
	if err == unix.ELOOP {
		return nil, fmt.Errorf("cannot read %s: %w: it is a symbolic link", path, whose)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "cannot read", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if container && st.Uid == Unmapped && proc.InOwnNamespace("user") { // the usual case is fast
		st.Uid = 0
	}
	why := writableByOthers(st, owner)
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		why = "it is not a regular file"
	}
	if why != "" {
		return nil, fmt.Errorf("cannot read %s: %w: %s", path, whose, why)
	}
	content, err := proc.ReadOpen(make([]byte, 0, 2048), fd, maxOwned+1)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if len(content) > maxOwned {
		return nil, fmt.Errorf("cannot read %s: larger than %d bytes", path, maxOwned)
	}
	return content, nil
}

// writableByOthers returns how a user other than the owner could change the file, or "".
func writableByOthers(st unix.Stat_t, owner uint32) string {
	switch {
	case st.Uid != owner:
		return fmt.Sprintf("its owner is uid %d", st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Sprintf("its mode %04o lets others write", st.Mode&0o7777)
	}
	return ""
}

// anyWait is how long ReadAny waits for all of a file.
const anyWait = 5 * time.Second

// ReadAny reads a file that an admin has named and that may have any owner. Another user may have
// put something else in its place. So ReadAny waits for no writer of a fifo, reads for 5 s at most, and reads 4 MiB
// at most. A terminal does not become that of this process.
func ReadAny(path string) (content []byte, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, errors.Unwrap(err))
	}
	defer file.Close()
	_ = file.SetReadDeadline(time.Now().Add(anyWait)) // what has no deadline, such as a regular file, does not wait
	content, err = io.ReadAll(io.LimitReader(file, maxOwned+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("cannot read %s: it has no end within %v: is it a fifo?", path, anyWait)
	case err != nil:
		err = fmt.Errorf("cannot read %s: %w", path, errors.Unwrap(err))
	case len(content) > maxOwned:
		err = fmt.Errorf("cannot read %s: larger than %d bytes", path, maxOwned)
	}
	return content, err
}

// ListRootOwned returns the sorted names in a folder that only root can change. The error wraps fs.ErrNotExist if there
// is not a folder, and ErrNotRootOwned if another user could have added or removed a file.
func ListRootOwned(path string) ([]string, error) {
	dir, err := OpenFolder(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("cannot list %s: %w", path, err)
	}
	slices.Sort(names)
	return names, nil
}
