// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// A step's folder has the daemon's pipes and logs: slurm-mps-UID-RANDOM in /tmp or /dev/shm. The step's supervisor makes
// it under a name that no one can know before, and the keeper tells the ranks. Both hold its lock. So systemd-tmpfiles
// leaves it alone (tmpfiles.d(5)), and a folder without the lock is one that its keeper could not remove.

// bases are the folders that may have a step's folder.
func bases(root string) []string {
	return []string{filepath.Join(root, "/tmp"), filepath.Join(root, "/dev/shm")}
}

// prefix begins the names of this user's folders.
func prefix() string { return "slurm-mps-" + strconv.Itoa(os.Getuid()) + "-" }

// makeFolder makes the folder of a step in the first base that can have it, and locks it.
func makeFolder(root string, job uint32) (*os.File, error) {
	var failed error
	for _, base := range bases(root) {
		dir, err := makeIn(base, job)
		if err == nil {
			return dir, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, fmt.Errorf("cannot make a folder for the MPS daemon: %w", failed)
}

func makeIn(base string, job uint32) (*os.File, error) {
	if err := checkBase(base); err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(base, prefix())
	if err != nil {
		return nil, err
	}
	dir, err := lockFolder(path)
	if err == nil {
		err = dir.Chmod(0o700) // whatever the umask is
	}
	if err == nil {
		err = mps.CheckPath(filepath.Join(path, "jobs", strconv.FormatUint(uint64(job), 10), "0", "pipe"))
	}
	if err == nil {
		err = checkSpace(path)
	}
	if err != nil {
		os.RemoveAll(path) // so that another base can have it
		return nil, err
	}
	return dir, nil
}

// lockFolder opens and locks a folder of this user.
func lockFolder(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	dir := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Uid != uint32(os.Geteuid()) {
		err = fmt.Errorf("uid %d owns it", st.Uid)
	}
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	return dir, nil
}

// isAt reports whether an open file is still at its path.
func isAt(file *os.File) bool {
	open, err1 := file.Stat()
	found, err2 := os.Lstat(file.Name())
	return err1 == nil && err2 == nil && os.SameFile(open, found)
}

// inode is the number of a folder that a path has, 0 for none.
func inode(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// stepSize is more than the files of a step have at its start.
const stepSize = 64 << 10

// checkSpace checks that the file system of a folder has space for a step, by writing as much.
func checkSpace(dir string) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil || limit.Cur < stepSize {
		return nil // the write would end this process
	}
	path := filepath.Join(dir, "space")
	defer os.Remove(path)
	if err := os.WriteFile(path, make([]byte, stepSize), 0o600); err != nil {
		return fmt.Errorf("cannot use %s: %w", dir, errors.Unwrap(err))
	}
	return nil
}

// maxNames limits the names that one start reads of a base, and maxStale the folders that it looks at.
const maxNames, maxStale = 10000, 64

// removeStale removes the folders of keepers that were killed with their supervisors. A daemon without clients that one
// of them has left is told to quit. One that has clients serves them on: the folder stays until a later start.
func removeStale(ctx context.Context, root string, program mps.ControlProgram) {
	for _, base := range bases(root) {
		open, err := os.Open(base)
		if err != nil {
			continue
		}
		names, _ := open.Readdirnames(maxNames)
		open.Close()
		ours := slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix()) })
		for _, name := range ours[:min(len(ours), maxStale)] {
			dir, err := lockFolder(filepath.Join(base, name))
			if err != nil {
				continue
			}
			if leaves(ctx, dir.Name(), program) {
				os.RemoveAll(dir.Name())
			}
			dir.Close()
		}
	}
}

// leaves reports whether no daemon runs in a folder. It ends one that has no client and no process that may become one.
func leaves(ctx context.Context, dir string, program mps.ControlProgram) bool {
	pipes, _ := filepath.Glob(filepath.Join(dir, "jobs", "*", "0", "pipe"))
	for _, pipe := range pipes {
		k := keeper{program: program, job: lease.Job{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
			folders: lease.Daemon{PipeDir: pipe, LogDir: filepath.Join(filepath.Dir(pipe), "log")}}
		if k.leftBehind() {
			return false
		}
		if !isSocket(filepath.Join(pipe, "control")) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 2*askTime)
		defer cancel()
		if clients, err := program.Clients(ctx, k.job, k.folders); err == nil && len(clients) == 0 {
			_ = program.Quit(ctx, k.job, k.folders)
		}
	}
	all, err := mps.FindAll(ctx)
	return err == nil && !slices.ContainsFunc(all, func(p mps.Process) bool { return strings.HasPrefix(p.PipeDir, dir+"/") })
}

// localFileSystems are file systems of one node. On a network's, such as NFS, Lustre or GPFS, sockets and locks may not
// work.
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
		return fmt.Errorf("cannot use %s: it is not on a local file system (type %#x)", base, fs.Type)
	}
	info, err := os.Stat(base)
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", base, errors.Unwrap(err))
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	shared := info.Mode().Perm()&0o022 != 0
	trusted := owner == 0 || owner == uint32(os.Getuid()) || owner == osfile.Unmapped && proc.InOwnNamespace("user")
	if !trusted || shared && info.Mode()&os.ModeSticky == 0 {
		return fmt.Errorf("cannot use %s: another user could remove files from it", base)
	}
	return nil
}
