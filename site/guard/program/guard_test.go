// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog/diode"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
)

// newStore is the store of a node with a lease of job 7, whose daemon has not started.
func newStore(t *testing.T) (*lease.Store, string, lease.Lease) {
	t.Helper()
	must.Root(t)
	boot := must.Get(proc.BootID())(t)
	folder := filepath.Join(t.TempDir(), "run")
	store := must.Get(lease.Open(folder, boot))(t)
	l := lease.Lease{
		Job: lease.Job{ID: 7, UID: 2001, GID: 2001, User: "hpc1"}, Phase: lease.Opening,
		Daemons: []lease.Daemon{{PipeDir: "/p", LogDir: "/l"}},
	}
	must.OK(t, store.Create(t.Context(), l))
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
		must.OK(t, err)
		must.OK(t, c.change(store, folder, l))
		_, err = leaseFor(store, lock, 7)
		must.Hold(t, (c.want != "" || err == nil) && (c.want == "" || err != nil && strings.Contains(err.Error(), c.want)),
			"%s: %v, want %q", c.name, err, c.want)
		must.Note(t, lock.Release())
	}
}

// A job has one guard.
//
// Contract: G1
func TestOneGuardOfAJob(t *testing.T) {
	store, _, _ := newStore(t)
	lock, err := lockFor(store, 7)
	must.OK(t, err)
	defer lock.Release()
	began := time.Now()
	_, err = lockFor(store, 7)
	var busy *lease.BusyError
	must.Hold(t, errors.As(err, &busy) && busy.Holder.PID == os.Getpid() && time.Since(began) <= 5*time.Second,
		"a second guard: %v", err)
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
	must.OK(t, store.Save(l))
	if all := r.daemons(); len(all) != 1 || all[0] != started {
		t.Errorf("after its start: %v", all)
	}
	path := filepath.Join(folder, "leases", "7.json")
	must.OK(t, os.Truncate(path, 10))
	if all := r.daemons(); !r.Leased() || len(all) != 1 || all[0] != started {
		t.Errorf("a lease that cannot be read: leased %v, daemons %v", r.Leased(), all)
	}
	must.OK(t, os.Remove(path))
	must.Hold(t, !r.Leased(), "a lease that is gone exists")
}

// The guard gets all that the lease has for it. Only a guard without root gives its warnings another place.
func TestWhatAGuardGets(t *testing.T) {
	settings := lease.GuardSettings{Hold: lease.Duration(3 * time.Second), Pause: lease.Duration(4 * time.Second), Clients: 5}
	l := lease.Lease{
		Job: lease.Job{ID: 7, UID: 2001, GID: 2002}, SLUID: "s1",
		Settings: lease.Settings{GuardSettings: settings},
		GPUs:     []lease.LeasedGPU{{UUID: "GPU-6", Minor: 6}}, Daemons: []lease.Daemon{{PipeDir: "/p", LogDir: "/l"}},
	}
	o := options(&record{}, l, line{job: 7, interval: time.Second, paths: site.Paths{Root: "/r"}})
	if unset := testproc.Unset(o); len(unset) != 1 || unset[0] != "Warnings" {
		t.Fatalf("not set: %q", unset)
	}
	if o.GuardSettings != settings || o.UID != 2001 || o.GID != 2002 || o.Minors[0] != 6 ||
		o.Pipes[0] != "/p" || o.Logs[0] != "/l" || !strings.HasSuffix(strings.Join(o.Gauge, " "), "--gpu GPU-6") {
		t.Errorf("%+v", o)
	}
}

// stuck is a log on a disk that does not answer.
type stuck struct{ reached chan struct{} }

func (s stuck) Write([]byte) (int, error) { close(s.reached); select {} }

// A disk that does not answer does not keep the guard from its end: the epilog waits for that.
func TestALogThatDoesNotClose(t *testing.T) {
	log, closed := stuck{make(chan struct{})}, make(chan struct{})
	lines := diode.NewWriter(log, maxLines, 0, nil)
	must.Get(lines.Write([]byte("line\n")))(t)
	<-log.reached
	go func() { closeLines(lines); close(closed) }()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("the guard waits for its log")
	}
}
