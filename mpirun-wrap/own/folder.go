// SPDX-License-Identifier: Apache-2.0

package own

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// The files of a step's folder, beside those of its store. Ranks lock alive together, and the keeper alone. The keeper
// and its supervisor hold the lock keeper.
const (
	aliveLock   = "alive"
	keeperLock  = "keeper"
	ranksFolder = "ranks" // a file for each rank's pid, with its start time
)

// makeFolder makes what a step's folder needs before its first rank is registered.
func makeFolder(dir string) error {
	err := os.Mkdir(filepath.Join(dir, ranksFolder), 0o700)
	if errors.Is(err, os.ErrNotExist) {
		return errEnding
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make %s: %w", filepath.Join(dir, ranksFolder), errors.Unwrap(err))
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

// removeFolder removes a step's folder, and the user's folder if no other step has one. The step's is renamed first, so
// that new ranks make another one.
func removeFolder(dir string) {
	gone := dir + removing + strconv.Itoa(os.Getpid())
	if os.Rename(dir, gone) != nil {
		gone = dir
	}
	_ = os.RemoveAll(gone)
	_ = unix.Rmdir(filepath.Dir(dir))
}

// maxStale limits the folders that one start removes.
const maxStale = 64

// removeStale removes the folders of steps whose keepers and ranks have ended, killed all at once, for example by
// Slurm. A rank that has just made such a folder finds it gone and makes another one.
func removeStale(root string) {
	left := maxStale
	for _, place := range ours(root) {
		entries, _ := os.ReadDir(place)
		for _, entry := range entries[:min(len(entries), left)] {
			left--
			if dir := filepath.Join(place, entry.Name()); strings.Contains(dir, removing) {
				_ = os.RemoveAll(dir)
			} else {
				removeDead(dir)
			}
		}
		_ = unix.Rmdir(place)
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
func registered(dir string) (living []proc.Process) {
	entries, _ := os.ReadDir(filepath.Join(dir, ranksFolder))
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		content, _ := os.ReadFile(filepath.Join(dir, ranksFolder, entry.Name()))
		start, err := strconv.ParseUint(string(content), 10, 64)
		if err != nil {
			continue // the rank is about to write it
		}
		left := proc.Left([]proc.Process{{PID: pid, Start: start}}) // a rank in the middle of an exec may not answer
		if living = append(living, left...); len(left) == 0 {
			_ = os.Remove(filepath.Join(dir, ranksFolder, entry.Name()))
		}
	}
	return living
}
