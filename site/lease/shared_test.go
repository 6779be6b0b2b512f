// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"
	"time"
)

// After a boot, no lease names a shared lease of the boot before. The purge of any job removes it with its claims.
func TestASharedLeaseOfAnEarlierBootGoes(t *testing.T) {
	j := newStore(t)
	ctx := deadline(t, 5*time.Second)
	id, lock, err := j.NewShared(ctx)
	if err != nil {
		t.Fatal(err)
	}
	shared, member := leaseOf(id, gpuA), leaseOf(7, gpuA)
	shared.Part, member.Part, member.Joined = Part{Gres: GresMPS, Count: 100}, Part{Gres: GresMPS, Count: 100}, id
	for _, l := range []Lease{member, shared} {
		if err := j.Create(ctx, l); err != nil {
			t.Fatal(err)
		}
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if err := j.PurgeStale(ctx, 7); err != nil {
		t.Fatal(err)
	}
	if got, want := everything(t, j), "lock locks/4026531840"; got != want {
		t.Errorf("beside a prolog that runs: left %s, want %s", got, want)
	}
	if err := dead.file.Close(); err != nil { // as if the process were killed
		t.Fatal(err)
	}
	if err := j.PurgeStale(ctx, 7); err != nil {
		t.Fatal(err)
	}
	if got := everything(t, j); got != "lock" {
		t.Errorf("left: %s", got)
	}
	if err := j.Create(ctx, leaseOf(id, gpuA)); err != nil {
		t.Fatal(err)
	}
	if err := j.PurgeStale(ctx, 7); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Read(id); err != nil {
		t.Errorf("an open shared lease: %v", err)
	}
}
