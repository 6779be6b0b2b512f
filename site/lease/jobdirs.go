// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// DaemonDir is the folder of a job's n-th daemon. Root owns it; the pipe and log folders in it are the user's.
func (s *Store) DaemonDir(job uint32, n int) string {
	return filepath.Join(s.JobDir(job), strconv.Itoa(n))
}

// ExchangeDir is the folder in which the job's ranks have their slots, and files so that one of them prints a message.
func (s *Store) ExchangeDir(job uint32) string { return filepath.Join(s.JobDir(job), "exchange") }

// MakeDirs makes the daemons' pipe and log folders and the ranks' exchange folder. They have mode 0700 and belong to
// the user. The folders above are root's, so the user cannot replace them. All of them are in a file system of the
// job's own.
func (s *Store) MakeDirs(l Lease) error {
	if err := mkdir(s.JobDir(l.Job.ID), 0, 0, 0o755); err != nil {
		return err
	}
	if err := s.mountJobDir(l.Job.ID, len(l.Daemons)); err != nil {
		return err
	}
	return s.makeFolders(l)
}

// MakeDir makes the folder of a job that is only recorded. It has the report alone, so it needs no file system.
func (s *Store) MakeDir(job uint32) error { return mkdir(s.JobDir(job), 0, 0, 0o755) }

func (s *Store) makeFolders(l Lease) error {
	if err := mkdir(s.ExchangeDir(l.Job.ID), l.Job.UID, l.Job.GID, 0o700); err != nil {
		return err
	}
	for n, daemon := range l.Daemons {
		if err := mkdir(s.DaemonDir(l.Job.ID, n), 0, 0, 0o755); err != nil {
			return err
		}
		for _, path := range []string{daemon.PipeDir, daemon.LogDir} {
			if err := mkdir(path, l.Job.UID, l.Job.GID, 0o700); err != nil {
				return err
			}
		}
	}
	return nil
}

// mkdir makes path, whose parent is root's, and changes its owner. An existing path is accepted only if it is a
// folder.
func mkdir(path string, uid, gid uint32, mode fs.FileMode) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make %s: %w", path, osfile.ExplainFull(path, errors.Unwrap(err)))
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot make %s: %w", path, err)
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	if err := dir.Chmod(mode); err != nil {
		return fmt.Errorf("cannot make %s: %w", path, err)
	}
	if err := dir.Chown(int(uid), int(gid)); err != nil {
		return fmt.Errorf("cannot make %s: %w", path, err)
	}
	return nil
}

// The limits of what a job's user can fill. A log line has 100 bytes and a client writes ten of them. Each file may have
// ACLs of 256 KiB, which the kernel does not count. A daemon has ten files and folders, and each rank may have a slot.
const (
	sizeOfJob, filesOfJob = 16 << 20, 512
	countedDaemons        = 8 // each further one, of a MIG instance, has its own files
	filesOfDaemon         = 16
	mountFlags            = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
)

func mountOptions(daemons int) string {
	files := filesOfJob + filesOfDaemon*max(0, daemons-countedDaemons)
	return fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", sizeOfJob, files)
}

// mountJobDir gives a job's folder its own file system. A user who fills it, or makes folders without end in it, uses
// up nothing of the node's. A file of another user cannot be hard-linked into it. One call removes it from the job's
// folder with all its content.
//
// The folder stays in /run's file system in two cases: this process may not mount (a container without
// CAP_SYS_ADMIN), or no other process would see the mount.
func (s *Store) mountJobDir(job uint32, daemons int) error {
	path := s.JobDir(job)
	if inOtherMountNamespace() {
		return nil
	}
	if mounted, err := otherDevice(path, filepath.Dir(path)); err != nil || mounted {
		return err
	}
	err := unix.Mount("slurm-mps", path, "tmpfs", mountFlags, mountOptions(daemons))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot mount a file system at %s: %w", path, err)
	}
	return nil
}

// inOtherMountNamespace reports whether one of this process's ancestors is in another mount namespace. That is so for
// a prolog in its job's namespace, and for a slurmd with a private /tmp. Processes from outside, such as the steps
// that a restarted slurmd starts, would then find an empty folder. An ancestor that /proc does not show, as in some
// containers, is skipped.
func inOtherMountNamespace() bool {
	self, err := proc.Namespace(os.Getpid(), "mnt")
	if err != nil {
		return false
	}
	for pid := os.Getppid(); pid > 0; {
		other, err := proc.Namespace(pid, "mnt")
		if err == nil && other != self {
			return true
		}
		status, err := proc.ReadStatus(pid)
		if err != nil {
			return false
		}
		pid = status.Parent
	}
	return false
}

func otherDevice(a, b string) (bool, error) {
	var x, y unix.Stat_t
	if err := errors.Join(unix.Lstat(a, &x), unix.Lstat(b, &y)); err != nil {
		return false, fmt.Errorf("cannot compare %s with %s: %w", a, b, err)
	}
	return x.Dev != y.Dev, nil
}

// unmountJobDir unmounts a job's file system at once, even if processes of the user are still in it.
func (s *Store) unmountJobDir(job Job) error {
	path := s.JobDir(job.ID)
	for {
		if err := s.setAside(job); err != nil {
			return err
		}
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil: // another one may be mounted below it
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPERM):
			return s.FreeBusy(func(b Busy) bool { return b.UID == job.UID }) // nothing is mounted any more
		default:
			return fmt.Errorf("cannot unmount %s: %w", path, err)
		}
	}
}

// RemoveDirs removes the folders of a job, of which the number and the user matter. Usually they are in a file system,
// which stays mounted elsewhere if files are in use (busy.go). Users own some of the folders below, so no link is followed.
func (s *Store) RemoveDirs(job Job) error {
	if err := s.unmountJobDir(job); err != nil {
		return err
	}
	if err := s.removeDirs(strconv.FormatUint(uint64(job.ID), 10)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove folders of job %d: %w", job.ID, err)
	}
	return nil
}

func (s *Store) removeDirs(job string) error {
	jobs, err := os.OpenRoot(filepath.Join(s.dir, "jobs"))
	if err != nil {
		return err
	}
	defer jobs.Close()
	top, err := jobs.OpenRoot(job)
	if err != nil {
		return err
	}
	defer top.Close()
	if err := (&tree{top: top}).clear(); err != nil {
		return err
	}
	return jobs.Remove(job)
}

// tree is a folder of root's that may contain folders of the user's. Each folder is moved to the top of the tree and
// given to root before it is emptied. So the user cannot make it deeper than there are descriptors, cannot
// continue to fill it, and cannot replace it by a link.
type tree struct {
	top   *os.Root
	moved int
}

// clear empties the tree. Files that a user makes at the same time are found by the next pass.
func (t *tree) clear() error {
	for {
		entries, err := t.list(".")
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, entry := range entries {
			if err := t.remove(entry); err != nil {
				return err
			}
		}
	}
}

// remove removes an entry at the top of the tree. It moves the folders inside of the entry to the top.
func (t *tree) remove(entry fs.DirEntry) error {
	name := entry.Name()
	if !entry.IsDir() {
		return t.top.Remove(name)
	}
	if err := errors.Join(t.top.Lchown(name, 0, 0), t.top.Chmod(name, 0o700)); err != nil {
		return err
	}
	inside, err := t.list(name)
	if err != nil {
		return err
	}
	for _, child := range inside {
		path := filepath.Join(name, child.Name())
		if child.IsDir() {
			err = t.moveToTop(path)
		} else {
			err = t.top.Remove(path)
		}
		if err != nil {
			return err
		}
	}
	if err := t.top.Remove(name); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// moveToTop moves a folder to the top, under an unused name. A killed epilog may have left some of these names.
func (t *tree) moveToTop(path string) error {
	for {
		t.moved++
		err := t.top.Rename(path, ".raised-"+strconv.Itoa(t.moved))
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// maxListed is how many entries are listed at once, because a user may have made millions.
const maxListed = 1024

// list lists a part of a folder, none if it is empty.
func (t *tree) list(name string) ([]fs.DirEntry, error) {
	dir, err := t.top.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxListed)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}
