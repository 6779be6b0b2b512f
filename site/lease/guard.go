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
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// GuardState is what a job's guard tells people and the job's summary. No undo reads it.
type GuardState struct {
	Schema   int            `json:"schema"`
	Boot     string         `json:"boot"`
	Clients  int            `json:"clients"`                  // living now
	Peak     int            `json:"peak"`                     // living at the same time
	Seen     int            `json:"clients_seen"`             // since the job began
	Dead     int            `json:"clients_dead"`             // whose files are held now
	Files    int            `json:"files"`                    // duplicates that are open
	Released map[string]int `json:"released,omitempty"`       // dead clients by the reason for which their files were closed
	Unheld   int            `json:"files_not_held,omitempty"` // files that could not be held
	// OutsideSeen counts the processes that had a GPU open and were no client of MPS; Outside names the first of them.
	OutsideSeen int       `json:"outside_seen,omitempty"`
	Outside     []Outside `json:"outside,omitempty"`
}

// NoNeighbour is the reason in GuardState.Released of files that were closed at once: no other client of the GPU lived.
const NoNeighbour = "no neighbour"

// Outside is a process of the job that has a GPU open and is no client of its MPS daemon.
type Outside struct {
	Proc  site.Process `json:"proc"`
	Since time.Time    `json:"since"`
	Cause string       `json:"cause"` // the likely reason, and what to do
}

// guardPath is the file that a job's guard has locked as long as it runs, and which says who it is.
func (j *Store) guardPath(job uint32) string {
	return filepath.Join(j.dir, "guards", strconv.FormatUint(uint64(job), 10))
}

func (j *Store) guardStatePath(job uint32) string { return j.path("guards", job) }

// LockGuard takes the place of a job's guard, waiting until ctx ends; a *BusyError then says which guard runs.
func (j *Store) LockGuard(ctx context.Context, job uint32) (*JobLock, error) {
	return j.lock(ctx, j.guardPath(job), job)
}

// HasGuard reports whether there is a file of a job's guard, which may have ended. A guard that starts makes it first.
func (j *Store) HasGuard(job uint32) (bool, error) {
	_, err := os.Lstat(j.guardPath(job))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("cannot look for guard of job %d: %w", job, err)
	}
	return true, nil
}

// Signed reports whether a lock says who has it: on a full file system it does not.
func (t *JobLock) Signed() bool { return readHolder(t.file).PID > 0 }

// SaveGuard keeps the state of a job's guard.
func (j *Store) SaveGuard(job uint32, s GuardState) error {
	s.Schema, s.Boot = Schema, j.boot
	content, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("cannot write state of the guard of job %d: %w", job, err)
	}
	return replace(j.guardStatePath(job), append(content, '\n'), 0o600, -1, false) // a sync may take longer than a client its start
}

// ReadGuard returns the state of a job's guard. Errors as of Read.
func (j *Store) ReadGuard(job uint32) (s GuardState, err error) {
	err = readRecord(j.guardStatePath(job), j.boot, &s)
	return s, err
}

// guardFiles are the files of a job's guard.
func (j *Store) guardFiles(job uint32) []string {
	return []string{temporaryOf(j.guardStatePath(job)), j.guardStatePath(job), j.guardPath(job)}
}
