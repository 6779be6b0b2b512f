// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
)

// Of all pairs of phases, only these may follow each other. A refused change changes neither the lease nor its file.
//
// Contract: R12
func TestAPhaseFollowsOnlyWhatItMay(t *testing.T) {
	j := newStore(t)
	phases := []Phase{Opening, Opened, Closing, "unknown", ""}
	allowed := map[[2]Phase]bool{
		{Opening, Opened}:    true,
		{Opening, Closing}:   true,
		{Opened, Closing}:    true,
		{Closing, Closing}:   true,
		{"unknown", Closing}: true, // an undo follows what a lease names, in every phase
		{"", Closing}:        true,
	}
	for _, from := range phases {
		for _, to := range phases {
			l := leaseOf(7, gpuA)
			l.Phase = from
			must.OK(t, j.Save(l))
			err := j.SetPhase(&l, to)
			want, text := from, fmt.Sprintf("cannot change phase of lease of job 7: %q may not follow %q", to, from)
			if allowed[[2]Phase{from, to}] {
				want, text = to, "<nil>"
			}
			if got := fmt.Sprint(err); got != text {
				t.Errorf("from %q to %q: %s, want %s", from, to, got, text)
			}
			if read, err := j.Read(7); err != nil || read.Phase != want || l.Phase != want {
				t.Errorf("from %q to %q: the lease is %q, its file %q, %v; want %q", from, to, l.Phase, read.Phase, err, want)
			}
		}
	}
}

// An undo may begin in each phase. Each phase that may follow another phase has its own row.
func TestEachPhaseLeadsToClosing(t *testing.T) {
	for phase, next := range nextPhases {
		if !phase.mayFollow(Closing) {
			t.Errorf("%q cannot be closed", phase)
		}
		for _, to := range next {
			if _, known := nextPhases[to]; !known {
				t.Errorf("%q leads to %q, which has no row", phase, to)
			}
		}
	}
}

// If the file cannot be written, the caller gets the error and the lease in its new phase. An undo continues with
// this lease.
func TestAPhaseThatCannotBeWrittenIsAnError(t *testing.T) {
	j := newStore(t)
	l := leaseOf(7, gpuA)
	must.OK(t, j.Create(context.Background(), l))
	if err := os.Mkdir(osfile.Temporary(j.leasePath(7)), 0o755); err != nil { // no file can be made there
		t.Fatal(err)
	}
	err := j.SetPhase(&l, Closing)
	read, readErr := j.Read(7)
	if err == nil || l.Phase != Closing || readErr != nil || read.Phase != Opening {
		t.Errorf("%v: the lease is %q, its file %q, %v", err, l.Phase, read.Phase, readErr)
	}
}

// A lease and its ticket are on the disk before the next step, and so is the end of a lease. What the guard
// writes often is not.
func TestWhatAStoreSyncs(t *testing.T) {
	s := newStore(t)
	l := leaseOf(7, gpuA)
	for _, c := range []struct {
		what string
		call func() error
		want string
	}{
		{"a new lease", func() error { return s.Create(t.Context(), l) }, ".7.json.new leases"},
		{"a lease", func() error { return s.Save(l) }, ".7.json.new leases"},
		{"a ticket", func() error { return s.WriteTicket(Ticket{Job: l.Job}) }, ".7.json.new tickets"},
		{"a guard's state", func() error { return s.SaveGuard(7, GuardState{}) }, ""},
		{"the end", func() error { return s.Delete(t.Context(), l) }, "leases"},
	} {
		if got := strings.Join(testproc.Synced(t, c.call), " "); got != c.want {
			t.Errorf("%s: synced %q, want %q", c.what, got, c.want)
		}
	}
}

// A lock that is held, a place that is not given and a process that does not start leave no file open.
func TestFailuresOfAStoreCloseTheirFiles(t *testing.T) {
	s := newStore(t)
	s.Clearer = []string{"/none"}
	lock, err := s.Lock(t.Context(), 7)
	if err == nil {
		err = os.MkdirAll(filepath.Join(s.busyDir(), "1"), 0o700)
	}
	must.OK(t, err)
	defer lock.Release()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	var places []*TakerPlace
	for range maxTakers {
		place := must.Get(s.TakerPlace(Taker{}))(t)
		places = append(places, place)
	}
	fails := func(what string, call func() error) {
		t.Helper()
		if leaks := testproc.Leaks(t, func() {
			if call() == nil {
				t.Errorf("%s: no error", what)
			}
		}); leaks > 0 {
			t.Errorf("%s: %d files are left open", what, leaks)
		}
	}
	fails("a lock that is held", func() error { _, err := s.Lock(over, 7); return err })
	fails("no place left", func() error { _, err := s.TakerPlace(Taker{}); return err })
	for _, place := range places {
		must.Note(t, place.Leave())
	}
	if leaks := testproc.Leaks(t, func() { s.clear(Busy{dir: filepath.Join(s.busyDir(), "1")}) }); leaks > 0 {
		t.Errorf("a child that does not start leaves %d files open", leaks)
	}
}
