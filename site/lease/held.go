// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// The memory of a tmpfs is in use until its last file is closed, also after it is unmounted. A process outside of the
// job may have a file open. So the file system of a closed job is first mounted in a folder of root's, then emptied by
// a process of its own (empty.go), and then unmounted. If it cannot be emptied, it stays there, so that status names
// it. Its limits are then what is in use.

// Held is the file system of a closed job, which processes keep in use.
type Held struct {
	Job   uint32
	UID   uint32 // the job's user, 0 if it is not known
	Bytes uint64 // of memory
	dir   string
}

// String describes it in a sentence.
func (h Held) String() string {
	return fmt.Sprintf("processes keep %d KiB of the file system of %s in use, which has been closed", h.Bytes>>10, Name(h.Job))
}

const (
	// maxHeld and maxHeldCount limit the memory and the number of the file systems that one user's jobs have left. At
	// either limit, the user's jobs are refused.
	maxHeld      = 256 << 20
	maxHeldCount = 64 // jobs that end at this moment count, too
	// A file system that has as much in use is unmounted all the same. A page of each file that a process goes on writing
	// cannot be freed, nor can the inode of an open file.
	spareBlocks, spareFiles = 16, 64
	// emptyWait is how long the process may take that empties a file system.
	emptyWait = emptyTime + time.Second
)

func (s *Store) heldDir() string { return filepath.Join(s.dir, "held") }

// hold mounts the file system of a job's folder in the folder of those that are held, without what is mounted in it. If
// this process may not mount, the folder has none. If there is no room for a folder, the file system is only limited.
func (s *Store) hold(job Job) error {
	path := s.JobDir(job.ID)
	mounted, err := otherDevice(path, filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !mounted {
		return nil
	}
	var st unix.Stat_t
	if err = errors.Join(err, unix.Lstat(path, &st)); err != nil {
		return fmt.Errorf("cannot hold %s: %w", path, err)
	}
	dir := filepath.Join(s.heldDir(), fmt.Sprintf("%d-%d-%d", job.UID, job.ID, st.Dev))
	for range maxHoldTries {
		if err = s.holdAt(path, dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return err
}

// maxHoldTries limits the tries to mount a file system in held: another process may remove the folder before it is
// mounted there, as if it had been freed.
const maxHoldTries = 10

func (s *Store) holdAt(path, dir string) error {
	for _, folder := range []string{s.heldDir(), dir} {
		if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			_, _ = shrink(path)
			return nil
		}
	}
	if held, err := otherDevice(dir, s.heldDir()); err != nil || held {
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

// Held returns the file systems of closed jobs that are in use. Only root may call it.
func (s *Store) Held() (all []Held, err error) {
	entries, err := os.ReadDir(s.heldDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list file systems of closed jobs: %w", err)
	}
	for _, entry := range entries {
		h := Held{dir: filepath.Join(s.heldDir(), entry.Name())}
		var device uint64
		if n, _ := fmt.Sscanf(entry.Name(), "%d-%d-%d", &h.UID, &h.Job, &device); n != 3 {
			continue
		}
		if used, err := usageOf(h.dir); err == nil && used.dev == device {
			h.Bytes = used.bytes()
		}
		all = append(all, h)
	}
	return all, nil
}

// HeldLeft returns the file systems that closed jobs have left. One whose epilog runs may be free in a moment. An epilog
// may also end after the list is made: a caller looks twice.
func (s *Store) HeldLeft() ([]Held, error) {
	all, err := s.Held()
	return slices.DeleteFunc(all, func(h Held) bool {
		_, acting := s.LockHolder(h.Job)
		return acting
	}), err
}

// FreeHeld empties the file systems of closed jobs that wanted accepts, and unmounts those that are empty.
func (s *Store) FreeHeld(wanted func(Held) bool) error {
	all, failed := s.Held()
	for _, h := range all {
		if wanted(h) {
			failed = errors.Join(failed, s.free(h))
		}
	}
	return failed
}

// HeldTooMuch reports whether a user's closed jobs keep too much memory. If they do, it first tries to free it.
func (s *Store) HeldTooMuch(uid uint32) (bool, error) {
	of := func(h Held) bool { return h.UID == uid }
	tooMuch := func() (bool, error) {
		all, err := s.Held()
		var count, bytes uint64
		for _, h := range all {
			if of(h) {
				count, bytes = count+1, bytes+h.Bytes
			}
		}
		return count >= maxHeldCount || bytes >= maxHeld, err
	}
	end := time.Now().Add(emptyWait)
	if much, err := tooMuch(); !much || err != nil {
		return false, err
	}
	if err := s.FreeHeld(func(h Held) bool { return of(h) && time.Now().Before(end) }); err != nil {
		return false, err
	}
	return tooMuch()
}

// free empties a file system and unmounts it, unless too much of it stays in use.
func (s *Store) free(h Held) error {
	mounted, err := otherDevice(h.dir, s.heldDir())
	if errors.Is(err, fs.ErrNotExist) { // another process has freed it since it was listed
		return nil
	}
	if err != nil {
		return err
	}
	if mounted {
		if err := s.empty(h); err != nil {
			return err
		}
		used, err := usageOf(h.dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil && (used.blocks > spareBlocks || used.files > spareFiles):
			return nil
		case err != nil && !errors.Is(err, errNoFileSystem):
			return err
		}
		if err := unix.Unmount(h.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("cannot unmount %s: %w", h.dir, err)
		}
	}
	return remove(h.dir)
}

// empty empties a file system in another process. A user can keep the lock of a file or a folder, and then no signal
// ends the process that waits for it. Such a process counts as a taker of the user. A store without a program for it
// empties the file system in this process. It is no error if something stays in use.
func (s *Store) empty(h Held) error {
	if len(s.Emptier) == 0 {
		_ = Empty(s.dir, filepath.Base(h.dir))
		return nil
	}
	self, err := proc.Current()
	if err != nil {
		return err
	}
	place, err := s.TakerPlace(Taker{Job: h.Job, UID: h.UID, Guard: self})
	if err != nil {
		_, err = shrink(h.dir) // processes of this user's file systems hang
		return err
	}
	defer place.Leave()
	stdin, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ours.Close() // ends the process
	defer stdin.Close()
	line := append(append([]string{}, s.Emptier...), filepath.Base(h.dir))
	child, err := proc.StartChild(line, true, stdin, place.Descriptor())
	if err != nil {
		_, err = shrink(h.dir)
		return err
	}
	place.Started(child.Process)
	select {
	case <-child.Ended:
	case <-time.After(emptyWait):
		child.End()
	}
	return nil
}

// usage is what is in use of a tmpfs.
type usage struct {
	dev           uint64
	blocks, files uint64
	blockSize     uint64
}

// bytes is the memory in use, about. An inode, its names and its attributes take what the kernel counts as files.
func (u usage) bytes() uint64 { return u.blocks*u.blockSize + u.files<<10 }

// errNoFileSystem means that a folder has no file system of a job, or none any more.
var errNoFileSystem = errors.New("it is no file system of a job")

// usageOf reads what is in use of a job's file system. The error is that dir has none.
func usageOf(dir string) (usage, error) {
	var st unix.Statfs_t
	var root unix.Stat_t
	err := unix.Statfs(dir, &st)
	if err == nil {
		err = unix.Lstat(dir, &root)
	}
	if err != nil {
		return usage{}, fmt.Errorf("cannot read use of %s: %w", dir, err)
	}
	if st.Type != unix.TMPFS_MAGIC || root.Uid != 0 {
		return usage{}, fmt.Errorf("cannot read use of %s: %w", dir, errNoFileSystem)
	}
	return usage{root.Dev, st.Blocks - st.Bfree, st.Files - st.Ffree, uint64(st.Bsize)}, nil
}

// shrink limits a file system to what is in use, so that no process makes it larger.
func shrink(dir string) (usage, error) {
	used, err := usageOf(dir)
	if err == nil {
		err = limit(dir, used)
	}
	return used, err
}

// limit sets the limits of a file system. The kernel refuses those below the use, and takes no limit of 0 blocks.
// Before Linux 5.4 it also refuses those that are equal.
func limit(dir string, to usage) error {
	size := strconv.FormatUint((to.blocks+1)*to.blockSize, 10)
	files := strconv.FormatUint(max(to.files, 1), 10)
	err := unix.Mount("", dir, "", unix.MS_REMOUNT|mountFlags, "size="+size+",nr_inodes="+files)
	if err != nil {
		return fmt.Errorf("cannot limit %s: %w", dir, err)
	}
	return nil
}
