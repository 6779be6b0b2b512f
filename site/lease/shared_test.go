// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// After a boot, no lease names a shared lease of the boot before. The purge of any job removes it.
func TestASharedLeaseOfAnEarlierBootGoes(t *testing.T) {
	j := newStore(t)
	ctx := deadline(t, 5*time.Second)
	id, lock, err := j.NewShared(ctx)
	must.OK(t, err)
	shared, member := leaseOf(id, gpuA), leaseOf(7, gpuA)
	shared.Part, member.Part, member.Joined = Part{Gres: GresMPS, Count: 100}, Part{Gres: GresMPS, Count: 100}, id
	for _, l := range []Lease{member, shared} {
		must.OK(t, j.Create(ctx, l))
	}
	must.OK(t, lock.Release())
	later, err := Open(j.dir, "boot-2")
	if err == nil {
		err = later.PurgeStale(ctx, 7)
	}
	if got := everything(t, j); err != nil || got != "lock" {
		t.Errorf("left: %s, %v", got, err)
	}
}

// A prolog that was killed before its lease leaves the lock file of a shared lease. The purge removes it, but not the
// lock of a prolog that runs, nor a shared lease that is open.
func TestOnlyUnusedSharedLeasesGo(t *testing.T) {
	j := newStore(t)
	ctx := deadline(t, 5*time.Second)
	id, dead, err := j.NewShared(ctx)
	must.OK(t, err)
	must.OK(t, j.PurgeStale(ctx, 7))
	if got, want := everything(t, j), "lock locks/4026531840"; got != want {
		t.Errorf("beside a prolog that runs: left %s, want %s", got, want)
	}
	if err := dead.file.Close(); err != nil { // as if the process were killed
		t.Fatal(err)
	}
	must.OK(t, j.PurgeStale(ctx, 7))
	if got := everything(t, j); got != "lock" {
		t.Errorf("left: %s", got)
	}
	must.OK(t, j.Create(ctx, leaseOf(id, gpuA)))
	must.OK(t, j.PurgeStale(ctx, 7))
	if _, err := j.Read(id); err != nil {
		t.Errorf("an open shared lease: %v", err)
	}
}

// toCome makes a job whose lease names a shared lease that is not written yet, and a folder of that shared lease.
func toCome(t *testing.T, j *Store) (id uint32) {
	t.Helper()
	member := leaseOf(8, gpuA)
	member.Part, member.Joined = Part{Gres: GresMPS, Count: 100}, firstShared
	err := j.Create(deadline(t, 5*time.Second), member)
	must.OK(t, errors.Join(err, os.Mkdir(j.JobDir(firstShared), 0o755)))
	if err := os.WriteFile(j.jobLockPath(firstShared), nil, 0o600); err != nil { // as of a process that was killed
		t.Fatal(err)
	}
	return firstShared
}

// A prolog writes its job's lease, which names the shared lease, before the shared lease. The purge of another job that
// comes between the two removes nothing of the shared lease, also if the member came after the purge's first look.
//
// Contract: S2
func TestASharedLeaseToComeStays(t *testing.T) {
	for name, purge := range map[string]func(*Store) error{
		"purge":                 func(j *Store) error { return j.PurgeStale(deadline(t, 5*time.Second), 9) },
		"purge that has looked": func(j *Store) error { return j.purgeOne(deadline(t, 5*time.Second), firstShared) },
	} {
		j := newStore(t)
		id := toCome(t, j)
		if j.void(id) {
			t.Errorf("%s: a shared lease with a member is void", name)
		}
		must.Note(t, purge(j))
		if _, err := os.Lstat(j.JobDir(id)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Contract: S2
func TestANumberThatAMemberNamesIsNotGivenAgain(t *testing.T) {
	j := newStore(t)
	taken := toCome(t, j)
	id, lock, err := j.NewShared(deadline(t, 5*time.Second))
	must.OK(t, err)
	if err := lock.Release(); err != nil || id == taken {
		t.Errorf("number %d, %v", id, err)
	}
}
