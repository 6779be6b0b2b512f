// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
)

// Part is the part of each GPU that Slurm has given a job by gres/shard or gres/mps. The zero Part is whole GPUs.
type Part struct {
	Gres  string `json:"gres"`            // GresShard or GresMPS
	Units int    `json:"units,omitempty"` // of Count; 0 if only the ranks know (SLURM_SHARDS_ON_NODE)
	Count int    `json:"count"`           // units of a whole GPU
}

// The GRES that put several jobs on one GPU.
const (
	GresShard = "shard"
	GresMPS   = "mps"
)

// Shared reports whether other jobs may have leases on the same GPUs.
func (p Part) Shared() bool { return p.Gres != "" }

// Percent returns the part as a percentage of a GPU. It is 0 if the part is the whole GPU or not known.
func (p Part) Percent() policy.Percent {
	if p.Units == 0 || p.Units >= p.Count {
		return 0
	}
	return policy.PartOf(p.Units, p.Count)
}

// Fraction returns the part of a whole, as 1 for whole GPUs. It is 0 if it is not known.
func (p Part) Fraction() float64 {
	if !p.Shared() || p.Units >= p.Count {
		return 1
	}
	return float64(p.Units) / float64(p.Count)
}

// String returns "2 of 8 shards", "whole GPUs", or "some of 8 shards".
func (p Part) String() string {
	units := strconv.Itoa(p.Units)
	switch {
	case !p.Shared():
		return "whole GPUs"
	case p.Units == 0:
		units = "some"
	}
	unit := "shards"
	if p.Gres == GresMPS {
		unit = "percent"
	}
	return fmt.Sprintf("%s of %d %s", units, p.Count, unit)
}

// firstShared is the number of the first lease of a shared daemon. Slurm's numbers of jobs have 26 bits.
const firstShared = 0xf0000000

// IsShared reports whether a number of a lease is not a job's, but that of a daemon that several jobs of a user share.
// Such a lease lives as long as one of its members.
func IsShared(id uint32) bool { return id >= firstShared }

// Name returns what a lease is called: "job 7", or "shared daemon 1".
func Name(id uint32) string {
	if IsShared(id) {
		return fmt.Sprintf("shared daemon %d", id-firstShared+1)
	}
	return fmt.Sprintf("job %d", id)
}

// Members returns the jobs whose leases name a shared lease. The error is that of a lease that cannot be read, because
// it may be a member.
func (s *Store) Members(shared uint32) (members []uint32, err error) {
	jobs, err := s.Jobs()
	if err != nil {
		return nil, err
	}
	for _, job := range jobs {
		l, err := s.Read(job)
		switch {
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrStaleBoot):
		case err != nil:
			return nil, err
		case l.Joined == shared:
			members = append(members, job)
		}
	}
	return members, nil
}

// IsMember reports whether the lease of a job, by its number or its SLUID, names a shared lease.
func (s *Store) IsMember(shared uint32, job string) bool {
	if shared < firstShared {
		return false
	}
	if number, err := strconv.ParseUint(job, 10, 32); err == nil {
		l, err := s.Read(uint32(number))
		return err == nil && l.Joined == shared
	}
	members, _ := s.Members(shared)
	return slices.ContainsFunc(members, func(member uint32) bool {
		l, err := s.Read(member)
		return err == nil && l.SLUID == job
	})
}

// newSharedWait limits the wait for one lock while NewShared looks for a free number.
const newSharedWait = 50 * time.Millisecond

// NewShared returns a number without a lease for a shared daemon, and the lock of that lease.
func (s *Store) NewShared(ctx context.Context) (id uint32, lock *JobLock, err error) {
	for id = firstShared; ; id++ {
		bound, cancel := context.WithTimeout(ctx, newSharedWait)
		lock, err = s.Lock(bound, id)
		cancel()
		var busy *BusyError
		switch {
		case ctx.Err() != nil:
			return 0, nil, errors.Join(ctx.Err(), err)
		case errors.As(err, &busy):
			continue
		case err != nil:
			return 0, nil, err
		}
		members, err := s.Members(id)
		if _, missing := s.Read(id); errors.Is(missing, ErrNotFound) && len(members) == 0 && err == nil {
			return id, lock, nil
		}
		if err = errors.Join(err, lock.Release()); err != nil {
			return 0, nil, err
		}
	}
}

// purgeShared purges what an earlier boot, or a prolog that was killed before it wrote its lease, left of shared leases.
// A shared lease whose lock is held is in use.
func (s *Store) purgeShared(ctx context.Context) error {
	leases, failed := s.Jobs()
	locks, err := s.LockedJobs()
	if failed = errors.Join(failed, err); failed != nil {
		return failed
	}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(append(leases, locks...)))) {
		if IsShared(id) && s.void(id) {
			failed = errors.Join(failed, s.purgeOne(ctx, id))
		}
	}
	return failed
}

// void reports whether a shared lease of this boot does not exist, and no lease names it.
func (s *Store) void(id uint32) bool {
	leased, _ := s.leased(id)
	members, err := s.Members(id)
	return !leased && err == nil && len(members) == 0
}

// purgeOne purges a shared lease that is void when its lock is taken.
func (s *Store) purgeOne(ctx context.Context, id uint32) error {
	bound, cancel := context.WithTimeout(ctx, newSharedWait)
	defer cancel()
	lock, err := s.Lock(bound, id)
	if _, ok := errors.AsType[*BusyError](err); ok {
		return nil
	}
	if err != nil {
		return err
	}
	if s.void(id) {
		err = s.PurgeStale(ctx, id)
	}
	return errors.Join(err, lock.Release())
}
