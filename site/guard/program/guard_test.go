// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// newStore is the store of a node with a lease of job 7, whose daemon has not started.
func newStore(t *testing.T) (*lease.Store, string, lease.Lease) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	boot, err := proc.BootID()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "run")
	store, err := lease.Open(folder, boot)
	if err != nil {
		t.Fatal(err)
	}
	l := lease.Lease{
		Job: lease.Job{ID: 7, UID: 2001, GID: 2001, User: "hpc1"}, Phase: lease.Opening,
		Daemons: []lease.Daemon{{PipeDir: "/p", LogDir: "/l"}},
	}
	if err := store.Create(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	return store, folder, l
}

// A guard runs only for a lease that is not being closed, and only if others can find the guard by its lock.
//
// Contract: G1
func TestWhichJobsAreGuarded(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(store *lease.Store, folder string, l lease.Lease) error
		want   string
	}{
		{"its prolog runs", func(*lease.Store, string, lease.Lease) error { return nil }, ""},
		{"it runs", func(store *lease.Store, _ string, l lease.Lease) error {
			l.Phase = lease.Opened
			return store.Save(l)
		}, ""},
		{"its epilog has begun", func(store *lease.Store, _ string, l lease.Lease) error {
			l.Phase = lease.Closing
			return store.Save(l)
		}, "the epilog closes job 7"},
		{"it has no lease", func(store *lease.Store, _ string, l lease.Lease) error {
			return store.Delete(t.Context(), l)
		}, "no lease"},
		{"its lease is torn", func(_ *lease.Store, folder string, _ lease.Lease) error {
			return os.Truncate(filepath.Join(folder, "leases", "7.json"), 10)
		}, "cannot"},
		{"its lock cannot be written", func(_ *lease.Store, folder string, _ lease.Lease) error {
			return os.Truncate(filepath.Join(folder, "guards", "7"), 0)
		}, "its lock cannot be written"},
	} {
		store, folder, l := newStore(t)
		lock, err := lockFor(store, 7)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.change(store, folder, l); err != nil {
			t.Fatal(err)
		}
		_, err = leaseFor(store, lock, 7)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err := lock.Release(); err != nil {
			t.Error(err)
		}
	}
}

// A job has one guard.
//
// Contract: G1
func TestOneGuardOfAJob(t *testing.T) {
	store, _, _ := newStore(t)
	lock, err := lockFor(store, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	began := time.Now()
	_, err = lockFor(store, 7)
	var busy *lease.BusyError
	if !errors.As(err, &busy) || busy.Holder.PID != os.Getpid() || time.Since(began) > 5*time.Second {
		t.Errorf("a second guard: %v", err)
	}
}

// The guard reads the lease until all daemons have started, and a lease that cannot be read exists.
//
// Contract: G1
func TestTheLeaseOfARunningGuard(t *testing.T) {
	store, folder, l := newStore(t)
	r := record{store: store, job: l.Job, started: l.Daemons}
	other := make(chan struct{}) // what the guard's other goroutines ask at that time, for go test -race
	go func() {
		for range 1000 {
			r.Published()
			r.Member("8")
		}
		close(other)
	}()
	defer func() { <-other }()
	if all := r.daemons(); len(all) != 1 || all[0].PID != 0 {
		t.Errorf("before its start: %v", all)
	}
	started := proc.Process{PID: 42, Start: 1}
	l.Daemons = []lease.Daemon{{PipeDir: "/p", LogDir: "/l", Proc: started}}
	if err := store.Save(l); err != nil {
		t.Fatal(err)
	}
	if all := r.daemons(); len(all) != 1 || all[0] != started {
		t.Errorf("after its start: %v", all)
	}
	path := filepath.Join(folder, "leases", "7.json")
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	if all := r.daemons(); !r.Leased() || len(all) != 1 || all[0] != started {
		t.Errorf("a lease that cannot be read: leased %v, daemons %v", r.Leased(), all)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if r.Leased() {
		t.Error("a lease that is gone exists")
	}
}
