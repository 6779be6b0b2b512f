package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// DaemonDir is the folder of a job's daemon number n: root's, with the pipe and log folders in it that are the user's.
func (j *Journal) DaemonDir(job uint32, n int) string {
	return filepath.Join(j.JobDir(job), strconv.Itoa(n))
}

// MeetDir is the folder where the job's ranks meet.
func (j *Journal) MeetDir(job uint32) string { return filepath.Join(j.JobDir(job), "meet") }

// MakeDirs makes the pipe and log folders of the lease's daemons and the ranks' meeting place. They are the user's alone,
// 0700; what is above them is root's, so that the user cannot put others in their place.
func (j *Journal) MakeDirs(l Lease) error {
	if err := mkdir(j.JobDir(l.Job.ID), 0, 0, 0o755); err != nil {
		return err
	}
	if err := mkdir(j.MeetDir(l.Job.ID), l.Job.UID, l.Job.GID, 0o700); err != nil {
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

// RemoveDirs removes the folders of a job. Users own some of what is below, so no link is followed on the way.
func (j *Journal) RemoveDirs(job uint32) error {
	root, err := os.OpenRoot(filepath.Join(j.dir, "jobs"))
	if err != nil {
		return fmt.Errorf("cannot remove folders of job %d: %w", job, err)
	}
	defer root.Close()
	if err := root.RemoveAll(strconv.FormatUint(uint64(job), 10)); err != nil {
		return fmt.Errorf("cannot remove folders of job %d: %w", job, err)
	}
	return nil
}
