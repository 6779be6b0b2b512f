// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// The functions below are for programs that only read a node's state, and they take no lock. Each file is whole or
// absent, but several files may be of different moments. So a reader reads twice before it reports a fault.

// Jobs lists the jobs that have a lease, in order. It lists none if there is no store yet.
func (s *Store) Jobs() ([]uint32, error) { return s.jobs("leases", ".json") }

// Tickets lists the jobs that have a ticket, in order.
func (s *Store) Tickets() ([]uint32, error) { return s.jobs("tickets", ".json") }

// Dirs lists the jobs that have a folder for daemons, in order.
func (s *Store) Dirs() ([]uint32, error) { return s.jobs("jobs", "") }

// LockedJobs lists the jobs with a lock file, in order. The lock's holder may have been killed.
func (s *Store) LockedJobs() ([]uint32, error) { return s.jobs("locks", "") }

// LockHolder returns the process that holds a job's lock: a running prolog or epilog. Only root can read the lock
// file.
func (s *Store) LockHolder(job uint32) (proc.Process, bool) {
	content, err := osfile.ReadRootOwned(s.jobLockPath(job))
	var holder proc.Process
	if err != nil || json.Unmarshal(content, &holder) != nil {
		return proc.Process{}, false
	}
	return holder, holder.Running()
}

// jobs lists the jobs whose number is the name of an entry in a folder. It skips other names.
func (s *Store) jobs(folder, ending string) ([]uint32, error) {
	names, err := s.list(folder)
	var jobs []uint32
	for _, name := range names {
		number, ok := strings.CutSuffix(name, ending)
		id, err := strconv.ParseUint(number, 10, 32)
		if ok && err == nil && strconv.FormatUint(id, 10) == number {
			jobs = append(jobs, uint32(id))
		}
	}
	slices.Sort(jobs)
	return jobs, err
}

// list lists a folder by name. A missing folder counts as empty.
func (s *Store) list(folder string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list %s: %w", filepath.Join(s.dir, folder), errors.Unwrap(err))
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names, nil
}

// HasNothingOf reports whether nothing of a job is below dir, which may not exist: no lease, no ticket, no folder,
// and no prolog or epilog at work. It returns false if a folder is not root's own, because its content then proves
// nothing.
func HasNothingOf(dir string, job uint32) bool {
	number := strconv.FormatUint(uint64(job), 10)
	for _, place := range []struct{ folder, name string }{
		{"leases", number + ".json"}, {"tickets", number + ".json"}, {"jobs", number}, {"locks", number},
	} {
		folder := filepath.Join(dir, place.folder)
		err := closed(osfile.OpenFolder(dir))
		if err == nil {
			err = closed(osfile.OpenFolder(folder))
		}
		if err == nil {
			_, err = os.Lstat(filepath.Join(folder, place.name))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// closed closes a folder that was opened as root's own, or returns why it could not be.
func closed(folder *os.File, err error) error {
	if err == nil {
		err = folder.Close()
	}
	return err
}
