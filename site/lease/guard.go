// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// GuardState is what a job's guard reports to people and to the job's summary. No undo reads it.
type GuardState struct {
	Schema   int            `json:"schema"`
	Boot     string         `json:"boot"`
	Clients  int            `json:"clients"`                  // alive now
	Dead     int            `json:"clients_dead"`             // dead clients whose files are held now
	Files    int            `json:"files"`                    // duplicates that are open
	Released map[string]int `json:"released,omitempty"`       // dead clients, by the reason why their files were closed
	Unheld   int            `json:"files_not_held,omitempty"` // files that could not be held
	// Unguarded are the processes that the guard could not watch, by cause.
	Unguarded []Unguarded `json:"not_guarded,omitempty"`
	// Silent counts the processes of the job's user that are in the middle of an exec and do not answer the guard now.
	Silent int `json:"processes_silent,omitempty"`
	Counts
	Outside []Outside `json:"outside,omitempty"` // the first of OutsideSeen
}

// Counts are a guard's numbers of a job since the job began. The job's report, its summary in the log and its metrics
// have the guard's own, so all of them agree.
type Counts struct {
	ClientsSeen int `json:"clients_seen"`
	ClientsPeak int `json:"clients_peak"` // maximum alive at the same time
	// Pauses counts how often the guard paused the neighbours of a dead client. PausedMillis is the time of all pauses,
	// in milliseconds.
	Pauses       int   `json:"pauses,omitempty"`
	PausedMillis int64 `json:"paused_ms,omitempty"`
	// OutsideSeen counts the processes that had a GPU open and, seconds later, were not clients of MPS.
	OutsideSeen int `json:"outside_seen,omitempty"`
}

// NoNeighbour is a reason in GuardState.Released: the files were closed at once, because no other client of the GPU
// lived.
const NoNeighbour = "no neighbour"

// Unguarded counts the processes that a guard could not watch for one cause.
type Unguarded struct {
	Cause     string `json:"cause"`
	Processes int    `json:"processes"`
}

// Outside is a process of the job that has a GPU open and is not a client of the job's MPS daemon.
type Outside struct {
	Proc  proc.Process `json:"proc"`
	Since time.Time    `json:"since"`
	Cause string       `json:"cause"` // the likely reason, and what to do
}

// guardPath is the file that a job's guard locks while it runs. It contains the guard's pid.
func (s *Store) guardPath(job uint32) string { return s.path("guards", job, "") }

func (s *Store) guardStatePath(job uint32) string { return s.path("guards", job, ".json") }

// LockGuard takes the lock of a job's guard, and waits until ctx ends. A *BusyError then names the guard that runs.
func (s *Store) LockGuard(ctx context.Context, job uint32) (*JobLock, error) {
	return s.lock(ctx, s.guardPath(job), job)
}

// HasGuard reports whether a job's guard has a file. A guard makes the file first when it starts; it may have ended.
func (s *Store) HasGuard(job uint32) (bool, error) {
	_, err := s.GuardPromise(job)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Signed reports whether the lock file names its holder. On a full file system it does not.
func (l *JobLock) Signed() bool { return readHolder(l.file).PID > 0 }

// Inherit lets the program that this process becomes keep the lock.
func (l *JobLock) Inherit() error {
	_, err := unix.FcntlInt(l.file.Fd(), unix.F_SETFD, 0)
	return err
}

// Guards returns the number of jobs that may have a guard: those with folders for their ranks.
func (s *Store) Guards() int {
	found, _ := filepath.Glob(filepath.Join(s.dir, "jobs", "*", "exchange"))
	return len(found)
}

// Promise records by when the holder of a guard's lock acts again. So a reader sees whether that time is over, and a
// guard that has nothing to do need not wake up.
func (l *JobLock) Promise(deadline time.Time) error {
	when := unix.NsecToTimeval(deadline.UnixNano())
	return unix.Futimes(int(l.file.Fd()), []unix.Timeval{when, when})
}

// GuardPromise returns by when a job's guard has promised to act again.
func (s *Store) GuardPromise(job uint32) (time.Time, error) {
	info, err := os.Lstat(s.guardPath(job))
	if err != nil {
		return time.Time{}, fmt.Errorf("cannot look for guard of job %d: %w", job, err)
	}
	return info.ModTime(), nil
}

// SaveGuard writes the state of a job's guard.
func (s *Store) SaveGuard(job uint32, now GuardState) error {
	now.Schema, now.Boot = Schema, s.boot
	content, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("cannot write state of the guard of job %d: %w", job, err)
	}
	return state(content, 0o600).WriteTo(s.guardStatePath(job)) // without sync, which may take longer than a client's start
}

// ReadGuard returns the state of a job's guard. Its errors are those of Read.
func (s *Store) ReadGuard(job uint32) (state GuardState, err error) {
	err = readRecord(s.guardStatePath(job), s.boot, &state)
	return state, err
}
