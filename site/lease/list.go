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

	"github.com/slurm-mps/slurm-mps/site"
)

// What follows is for whoever looks at a node and changes nothing. No lock is taken: a file is whole or absent, and what
// is read of several files may be of several moments, so a reader looks twice before it calls anything wrong.

// Claim is a claim on a device as its file says it. Err is why it says nothing: root's alone to read, torn, or void; a
// void one names its job all the same.
type Claim struct {
	UUID site.UUID
	Job  uint32
	Err  error
}

// Claims lists the claims on devices by name.
func (j *Store) Claims() ([]Claim, error) {
	names, err := j.list("claims")
	if err != nil {
		return nil, err
	}
	var claims []Claim
	for _, name := range names {
		uuid := site.UUID(name)
		if !uuid.Valid() {
			continue
		}
		var c claim
		err := readRecord(j.claimPath(uuid), j.boot, &c)
		if errors.Is(err, ErrStaleBoot) {
			c.Job = j.claimant(uuid)
		}
		if !errors.Is(err, ErrNotFound) { // gone meanwhile
			claims = append(claims, Claim{uuid, c.Job, err})
		}
	}
	return claims, nil
}

// claimant is the job that a claim names, of whatever boot; 0 for none.
func (j *Store) claimant(uuid site.UUID) uint32 {
	var c claim
	content, err := site.ReadRootOwned(j.claimPath(uuid))
	if err != nil || json.Unmarshal(content, &c) != nil {
		return 0
	}
	return c.Job
}

// Jobs lists the jobs that have a lease, in order; none where there is no journal yet.
func (j *Store) Jobs() ([]uint32, error) { return j.jobs("leases", ".json") }

// Tickets lists the jobs that have a ticket, in order.
func (j *Store) Tickets() ([]uint32, error) { return j.jobs("tickets", ".json") }

// Dirs lists the jobs that have a folder for daemons, in order.
func (j *Store) Dirs() ([]uint32, error) { return j.jobs("jobs", "") }

// LockedJobs lists the jobs whose turn somebody has, or had when it was killed, in order.
func (j *Store) LockedJobs() ([]uint32, error) { return j.jobs("turns", "") }

// LockHolder is who has a job's turn: a prolog or an epilog that is at work, proved to be alive. Root's alone to know.
func (j *Store) LockHolder(job uint32) (site.Process, bool) {
	content, err := site.ReadRootOwned(j.turnPath(job))
	var holder site.Process
	if err != nil || json.Unmarshal(content, &holder) != nil {
		return site.Process{}, false
	}
	return holder, holder.Running()
}

// jobs lists the jobs whose number names an entry of a folder; what has another name is nobody's.
func (j *Store) jobs(folder, ending string) ([]uint32, error) {
	names, err := j.list(folder)
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

// list lists a folder by name; one that is not there is empty.
func (j *Store) list(folder string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(j.dir, folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list %s: %w", filepath.Join(j.dir, folder), errors.Unwrap(err))
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names, nil
}
