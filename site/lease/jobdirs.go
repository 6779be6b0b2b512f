// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// DaemonDir is the folder of a job's daemon number n: root's, with the pipe and log folders in it that are the user's.
func (j *Store) DaemonDir(job uint32, n int) string {
	return filepath.Join(j.JobDir(job), strconv.Itoa(n))
}

// ExchangeDir is the folder where the job's ranks meet.
func (j *Store) ExchangeDir(job uint32) string { return filepath.Join(j.JobDir(job), "meet") }

// MakeDirs makes the pipe and log folders of the lease's daemons and the ranks' meeting place. They are the user's alone,
// 0700; what is above them is root's, so that the user cannot put others in their place. All of them lie in a file system
// of the job's own.
func (j *Store) MakeDirs(l Lease) error {
	if err := mkdir(j.JobDir(l.Job.ID), 0, 0, 0o755); err != nil {
		return err
	}
	if err := j.mountJobDir(l.Job.ID); err != nil {
		return err
	}
	return j.makeFolders(l)
}

func (j *Store) makeFolders(l Lease) error {
	if err := mkdir(j.ExchangeDir(l.Job.ID), l.Job.UID, l.Job.GID, 0o700); err != nil {
		return err
	}
	for n, daemon := range l.Daemons {
		if err := mkdir(j.DaemonDir(l.Job.ID, n), 0, 0, 0o755); err != nil {
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

// mkdir makes path, whose parent is root's own, and gives it away. What is there already is taken only as a folder.
func mkdir(path string, uid, gid uint32, mode fs.FileMode) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make %s: %w", path, errors.Unwrap(err))
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

// What a job's user may fill: a log line has 100 bytes and a client writes ten, a launch may leave a word for each rank.
const mountOptions = "mode=0755,size=256m,nr_inodes=262144"

// mountJobDir gives a job's folder a file system of its own. What a user writes there without end, or in folders without a
// bottom, fills and holds up nothing of the node's, no file of another's can be linked into it, and it goes in one act
// whatever it holds. Where this process may not mount (a container without CAP_SYS_ADMIN), or where nobody else would see
// what it mounts, the folder is one of /run's.
func (j *Store) mountJobDir(job uint32) error {
	path := j.JobDir(job)
	if inOtherMountNamespace() {
		return nil
	}
	if boxed, err := otherDevice(path, filepath.Dir(path)); err != nil || boxed {
		return err
	}
	err := unix.Mount("slurm-mps", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, mountOptions)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot mount a file system at %s: %w", path, err)
	}
	return nil
}

// inOtherMountNamespace reports whether this process sees other mounts than one that it descends from, up to the node's first: a prolog in
// its job's own namespace, or a slurmd with a private /tmp. Whoever comes from outside, as the steps that a restarted slurmd
// starts, would find an empty folder. Of who is not shown, as the first process in some containers, nothing is known.
func inOtherMountNamespace() bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false
	}
	for pid := os.Getppid(); pid > 0; {
		other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err == nil && other != own {
			return true
		}
		stat, err := site.ReadStat(pid)
		if err != nil {
			return false
		}
		pid = stat.Parent
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

// unmountJobDir takes a job's file system away at once, though processes of the user's may still be in it.
func (j *Store) unmountJobDir(job uint32) error {
	path := j.JobDir(job)
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil: // there may be another below it
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPERM):
			return nil // none is there
		default:
			return fmt.Errorf("cannot unmount %s: %w", path, err)
		}
	}
}

// RemoveDirs removes the folders of a job, which most often lie in a file system that goes in one act. Users own some of
// what is below, so no link is followed on the way.
func (j *Store) RemoveDirs(job uint32) error {
	if err := j.unmountJobDir(job); err != nil {
		return err
	}
	if err := j.removeDirs(strconv.FormatUint(uint64(job), 10)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove folders of job %d: %w", job, err)
	}
	return nil
}

func (j *Store) removeDirs(job string) error {
	jobs, err := os.OpenRoot(filepath.Join(j.dir, "jobs"))
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

// tree is a folder of root's with folders in it that may be the user's. Each is put right into it and made root's before
// it is emptied, so that the user can neither make it deeper than there are descriptors, nor go on filling it, nor put a
// link in its place.
type tree struct {
	top   *os.Root
	moved int
}

// clear empties it. What a user makes while it is at work is found the next time.
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

// remove removes what is right below top. Folders in it come to be there too.
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

// moveToTop moves a folder to top, under a name that nothing there has: an epilog that was killed may have left some.
func (t *tree) moveToTop(path string) error {
	for {
		t.moved++
		err := t.top.Rename(path, ".raised-"+strconv.Itoa(t.moved))
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

func (t *tree) list(name string) ([]fs.DirEntry, error) {
	dir, err := t.top.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.ReadDir(-1)
}
