// SPDX-License-Identifier: Apache-2.0

package own

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"golang.org/x/sys/unix"
)

// The files of a step's folder, beside those of its store. Ranks lock alive together, and the keeper alone. The keeper
// and its supervisor hold the lock keeper.
const (
	aliveLock   = "alive"
	keeperLock  = "keeper"
	ranksFolder = "ranks" // a file for each rank's pid, with its start time
)

// openFolder makes or finds the step's folder in the first place that can have it. All ranks of a step find the same
// place, if they have the same $TMPDIR.
func openFolder(name string, bases []string) (string, error) {
	var failed error
	for _, base := range bases {
		dir := filepath.Join(base, name)
		err := checkBase(base)
		if err == nil {
			err = mps.CheckPath(filepath.Join(dir, "jobs", "4294967295", "0", "pipe"))
		}
		if err == nil {
			err = makeFolder(dir)
		}
		if err == nil || errors.Is(err, errEnding) { // the caller tries again, here and not at another place
			return dir, err
		}
		failed = errors.Join(failed, err)
	}
	return "", fmt.Errorf("cannot make a folder for the MPS daemon: %s", strings.ReplaceAll(failed.Error(), "\n", "; "))
}

// bases are the places for a step's folder: $TMPDIR, /tmp and /dev/shm.
func bases(env slurm.Env) []string {
	all := []string{"/tmp", "/dev/shm"}
	if dir := env["TMPDIR"]; filepath.IsAbs(dir) {
		all = slices.Insert(all, 0, filepath.Clean(dir))
	}
	return all
}

// localFileSystems are file systems of one node. On a network's, such as NFS, Lustre or GPFS, nodes would meet in one
// folder, and sockets and locks may not work.
var localFileSystems = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
	unix.RAMFS_MAGIC, unix.F2FS_SUPER_MAGIC, 0x2fc12fc1, // ZFS
}

// isLocal reports whether a type of file systems is in localFileSystems. statfs has it as a signed number on some
// machines.
func isLocal(kind int64) bool { return slices.Contains(localFileSystems, kind&0xffffffff) }

// checkBase checks that a folder is on this node, and that no other user can remove our folder from it.
func checkBase(base string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(base, &fs); err != nil {
		return fmt.Errorf("cannot use %s: %w", base, err)
	}
	if !isLocal(int64(fs.Type)) {
		return fmt.Errorf("cannot use %s: it is not on a local file system (type %#x): set TMPDIR to a local folder", base, fs.Type)
	}
	info, err := os.Stat(base)
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", base, errors.Unwrap(err))
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	shared := info.Mode().Perm()&0o022 != 0
	if owner != 0 && owner != uint32(os.Getuid()) || shared && info.Mode()&os.ModeSticky == 0 {
		return fmt.Errorf("cannot use %s: another user could remove files from it", base)
	}
	return nil
}

// makeFolder makes a folder that only this user can enter, or checks that an existing one is.
func makeFolder(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make %s: %w", dir, errors.Unwrap(err))
	}
	if err := checkOwn(dir); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, ranksFolder), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		if errors.Is(err, os.ErrNotExist) {
			return errEnding
		}
		return fmt.Errorf("cannot make %s: %w", filepath.Join(dir, ranksFolder), errors.Unwrap(err))
	}
	return nil
}

// checkOwn checks that a path is a folder of this user, which no other user can enter.
func checkOwn(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return errEnding
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0 {
		return fmt.Errorf("cannot use %s: it is not a folder of uid %d with mode 0700: another user made it", dir, os.Geteuid())
	}
	return nil
}

// openLock opens a lock file of the step's folder.
func openLock(dir, name string) (*os.File, error) {
	path := filepath.Join(dir, name)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errEnding
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", path, errors.Unwrap(err))
	}
	return file, nil
}

// isAt reports whether an open file is still at its path.
func isAt(file *os.File) bool {
	open, err1 := file.Stat()
	found, err2 := os.Lstat(file.Name())
	return err1 == nil && err2 == nil && os.SameFile(open, found)
}

// removing is in the name of a folder that is being removed.
const removing = "-removing-"

// removeFolder removes a step's folder. It is renamed first, so that new ranks make another one.
func removeFolder(dir string) {
	gone := dir + removing + strconv.Itoa(os.Getpid())
	if os.Rename(dir, gone) == nil {
		dir = gone
	}
	_ = os.RemoveAll(dir)
}

// maxStale limits the folders that one start removes.
const maxStale = 64

// removeStale removes this user's folders whose keepers and ranks have ended, killed all at once, for example by Slurm.
// A rank that has just made such a folder finds it gone and makes another one.
func removeStale(base string) {
	found, _ := filepath.Glob(filepath.Join(base, fmt.Sprintf("slurm-mps-%d-*", os.Getuid())))
	for _, dir := range found[:min(len(found), maxStale)] {
		switch {
		case checkOwn(dir) != nil:
		case strings.Contains(dir, removing):
			_ = os.RemoveAll(dir)
		default:
			removeDead(dir)
		}
	}
}

// removeDead removes a folder if no process holds its locks, and the daemon if that still runs.
func removeDead(dir string) {
	for _, name := range []string{keeperLock, aliveLock} {
		lock, err := openLock(dir, name)
		if err != nil {
			return
		}
		defer lock.Close()
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return
		}
	}
	pipes, _ := filepath.Glob(filepath.Join(dir, "jobs", "*", "0", "pipe"))
	for _, pipe := range pipes {
		_ = endDaemon(lease.Daemon{PipeDir: pipe, LogDir: filepath.Join(filepath.Dir(pipe), "log")})
	}
	removeFolder(dir)
}

// registered returns the ranks of a folder that live.
func registered(dir string) (living []site.Process) {
	entries, _ := os.ReadDir(filepath.Join(dir, ranksFolder))
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		content, _ := os.ReadFile(filepath.Join(dir, ranksFolder, entry.Name()))
		start, _ := strconv.ParseUint(string(content), 10, 64)
		if p := (site.Process{PID: pid, Start: start}); p.Running() {
			living = append(living, p)
		} else {
			_ = os.Remove(filepath.Join(dir, ranksFolder, entry.Name()))
		}
	}
	return living
}
