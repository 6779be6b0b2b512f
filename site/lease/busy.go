// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// The memory of a tmpfs is in use until its last file is closed, also after it is unmounted. A process outside of the
// job may have a file open. So the file system of a closed job is mounted in a folder of root's, cleared there, and
// unmounted if no file is left. One with a file stays there and counts, whatever keeps the file.

// Busy is the file system of a closed job, which processes keep in use.
type Busy struct {
	Job uint32
	UID uint32 // the job's user, 0 if it is not known
	dir string
}

// String describes it in a sentence.
func (b Busy) String() string {
	return fmt.Sprintf("processes keep files of %s in use, which has been closed", Name(b.Job))
}

const (
	// maxBusy limits the file systems that one user's jobs have left. With as many, the user's jobs are refused.
	maxBusy = 4
	// clearTime is how long the clearing of a file system may take. It has a few hundred files.
	clearTime = 3 * time.Second
	// maxMountTries limits the tries to mount a file system in busyDir: another process may remove the folder before it is
	// mounted there, as if it had been freed.
	maxMountTries = 10
)

func (s *Store) busyDir() string { return filepath.Join(s.dir, "busy") }

// setAside mounts the file system of a job's folder in the folder of those that are busy, without what is mounted in
// it. If this process may not mount, the folder has none.
func (s *Store) setAside(job Job) error {
	path := s.JobDir(job.ID)
	mounted, err := otherDevice(path, filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !mounted {
		return nil
	}
	var st unix.Stat_t
	if err = errors.Join(err, unix.Lstat(path, &st)); err != nil {
		return fmt.Errorf("cannot unmount %s: %w", path, err)
	}
	dir := filepath.Join(s.busyDir(), fmt.Sprintf("%d-%d-%d", job.UID, job.ID, st.Dev))
	for range maxMountTries {
		if err = mountAside(path, dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return err
}

func mountAside(path, dir string) error {
	for _, folder := range []string{filepath.Dir(dir), dir} {
		if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil // /run is full: without a name, it is only unmounted
		}
	}
	if mounted, err := otherDevice(dir, filepath.Dir(dir)); err != nil || mounted {
		return err
	}
	err := unix.Mount(path, dir, "", unix.MS_BIND, "")
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return remove(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot mount %s at %s: %w", path, dir, err)
	}
	return nil
}

// Busy returns the file systems of closed jobs that are in use. Only root may call it.
func (s *Store) Busy() (all []Busy, err error) {
	entries, err := os.ReadDir(s.busyDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list file systems of closed jobs: %w", err)
	}
	for _, entry := range entries {
		b := Busy{dir: filepath.Join(s.busyDir(), entry.Name())}
		var device uint64
		if n, _ := fmt.Sscanf(entry.Name(), "%d-%d-%d", &b.UID, &b.Job, &device); n == 3 {
			all = append(all, b)
		}
	}
	return all, nil
}

// BusyLeft returns the file systems that closed jobs have left. One whose epilog runs may be free in a moment. An epilog
// may also end after the list is made: a caller looks twice.
func (s *Store) BusyLeft() ([]Busy, error) {
	all, err := s.Busy()
	return slices.DeleteFunc(all, func(b Busy) bool {
		_, acting := s.LockHolder(b.Job)
		return acting
	}), err
}

// FreeBusy unmounts those of the file systems of closed jobs that wanted accepts and that are in use no more.
func (s *Store) FreeBusy(wanted func(Busy) bool) error {
	all, failed := s.Busy()
	for _, b := range all {
		if wanted(b) {
			failed = errors.Join(failed, s.free(b))
		}
	}
	return failed
}

// TooBusy reports whether a user's closed jobs keep too many file systems. If they do, it first tries to free them.
func (s *Store) TooBusy(uid uint32) (bool, error) {
	end := time.Now().Add(clearTime)
	for try := 0; ; try++ {
		all, err := s.Busy()
		all = slices.DeleteFunc(all, func(b Busy) bool { return b.UID != uid })
		if much := len(all) >= maxBusy; !much || try > 0 || err != nil {
			return much && err == nil, err
		}
		if err := s.FreeBusy(func(b Busy) bool { return b.UID == uid && time.Now().Before(end) }); err != nil {
			return false, err
		}
	}
}

// free clears a file system and unmounts it, unless a file of it stays in use.
func (s *Store) free(b Busy) error {
	mounted, err := otherDevice(b.dir, s.busyDir())
	if errors.Is(err, fs.ErrNotExist) { // another process has freed it since it was listed
		return nil
	}
	if err != nil {
		return err
	}
	if mounted {
		s.clear(b)
		var st unix.Statfs_t
		if err := unix.Statfs(b.dir, &st); err == nil && st.Type == unix.TMPFS_MAGIC && st.Files-st.Ffree > 1 { // the folder at its top
			return nil
		}
		if err := unix.Unmount(b.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // another process may have freed it
			return fmt.Errorf("cannot unmount %s: %w", b.dir, err)
		}
	}
	return remove(b.dir)
}

// clear clears a file system in another process. A user can keep the lock of a file or a folder, and then no signal
// ends the process that waits for it. Such a process counts as a taker of the user. What is not cleared stays in use.
func (s *Store) clear(b Busy) {
	if len(s.Clearer) == 0 {
		_ = Clear(s.dir, filepath.Base(b.dir))
		return
	}
	self, err := proc.Current()
	if err != nil {
		return
	}
	place, err := s.TakerPlace(Taker{Job: b.Job, UID: b.UID, Guard: self})
	if err != nil {
		return // processes of this user's file systems hang
	}
	defer place.Leave()
	line := append(slices.Clone(s.Clearer), filepath.Base(b.dir))
	child, err := proc.StartChild(line, true, nil, place.Descriptor())
	if err != nil { // for a moment there may be too many processes
		if child, err = proc.StartChild(line, true, nil, place.Descriptor()); err != nil {
			return
		}
	}
	place.Started(child.Process)
	select {
	case <-child.Ended:
	case <-time.After(clearTime):
		child.End()
	}
}

// Clear removes all files of a file system of a closed job. run is the folder of a store, and name that of the file
// system below busy.
func Clear(run, name string) error {
	busy := filepath.Join(run, "busy")
	dir := filepath.Join(busy, name)
	if filepath.Base(name) != name || filepath.Dir(dir) != busy {
		return fmt.Errorf("cannot clear %q: it is not the name of a file system", name)
	}
	if mounted, err := otherDevice(dir, busy); err != nil || !mounted {
		return errors.Join(err, fmt.Errorf("cannot clear %s: no file system is mounted there", dir))
	}
	top, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("cannot clear file system: %w", err)
	}
	defer top.Close()
	return (&tree{top: top}).clear()
}
