// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// newEvents opens events until the end of a test.
func newEvents(t *testing.T) *events {
	t.Helper()
	e := must.Get(openEvents())(t)
	t.Cleanup(e.close)
	return e
}

// If no descriptor is left, the error has the kernel's cause, and nothing stays open.
func TestEventsWithoutDescriptors(t *testing.T) {
	next := mayOpen(t, 1)
	_, err := openEvents()
	if err == nil || err.Error() != "cannot wait for events: too many open files" {
		t.Errorf("%v", err)
	}
	again, err := unix.Dup(0)
	if err != nil || again != next {
		t.Errorf("descriptor %d, %v, want %d", again, err, next)
	}
	unix.Close(again)
}

// mayOpen lets a test open some more descriptors only, and returns the first of them.
func mayOpen(t *testing.T, more int) int {
	t.Helper()
	next, err1 := unix.Dup(0)
	unix.Close(next)
	var limit unix.Rlimit
	err2 := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) })
	err3 := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next + more), Max: limit.Max})
	must.OK(t, errors.Join(err1, err2, err3))
	return next
}

// Openings wake the guard once for a scan, however many there are, and again after the scan.
func TestOpeningsWakeOnce(t *testing.T) {
	e := newEvents(t)
	path := filepath.Join(devices(t), "nvidia-uvm")
	must.OK(t, e.watch(path, unix.IN_OPEN))
	opens := func() {
		file := must.Get(os.Open(path))(t)
		file.Close()
	}
	for round := range 2 {
		opens()
		if s := e.wait(time.Now().Add(soon)); !s.opened {
			t.Fatalf("round %d: an opening does not wake", round)
		}
		opens()
		if s := e.wait(time.Now().Add(30 * time.Millisecond)); s.opened {
			t.Errorf("round %d: an opening wakes before the scan", round)
		}
		e.rearm()
		if s := e.wait(time.Now().Add(soon)); !s.opened {
			t.Errorf("round %d: what was opened before the scan is lost", round)
		}
		e.rearm()
	}
	e.stop()
	if s := e.wait(time.Now().Add(soon)); !s.stopped {
		t.Error("the order to stop does not arrive")
	}
}

// A missing path to watch, or a kernel without inotify, does not end the guard.
func TestWithoutAWatch(t *testing.T) {
	e := newEvents(t)
	if err := e.watch(filepath.Join(t.TempDir(), "none"), unix.IN_OPEN); err == nil || len(e.watched) > 0 {
		t.Errorf("a missing file is watched: %v", err)
	}
	unix.Close(e.inotify)
	unix.Close(e.lines)
	e.inotify, e.lines = -1, -1
	e.rearm()
	if err := e.watch("/dev/null", unix.IN_OPEN); err == nil || len(e.watched) > 0 {
		t.Errorf("without inotify, the guard watches: %v", err)
	}
	e.wait(time.Now().Add(time.Millisecond))
}

// Without a watch, the guard scans at fixed intervals.
func TestClientsAreFoundWithoutAWatch(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	unix.Close(r.events.inotify)
	unix.Close(r.events.lines)
	r.events.inotify, r.events.lines, r.events.watched = -1, -1, map[string]bool{}
	r.still()
	r.scan(time.Now())
	if wait := time.Until(r.scans.next); wait > rareScan/2 {
		t.Errorf("the next scan is in %v", wait)
	}
	c := r.child(opens + waits)
	if r.scan(time.Now()); r.living[c.Process.Pid] == nil {
		t.Error("a client is not found")
	}
}

// An event does not shorten the pause after a long scan.
func TestTheRestAfterAScan(t *testing.T) {
	g, now := &Guard{}, time.Now()
	g.scans.next, g.scans.rested = now.Add(time.Hour), now.Add(time.Second)
	if g.scans.by(now); g.scans.next != g.scans.rested {
		t.Errorf("the next scan is %v early", g.scans.rested.Sub(g.scans.next))
	}
	if g.scans.by(now.Add(time.Minute)); g.scans.next != g.scans.rested {
		t.Error("a later scan replaces an earlier scan")
	}
}

// A wait tells a daemon's line from an opening.
func TestLinesAreTold(t *testing.T) {
	e := newEvents(t)
	path, logs := filepath.Join(devices(t), "nvidia-uvm"), t.TempDir()
	err1 := e.watch(path, unix.IN_OPEN)
	if err2 := e.watch(logs, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_ONLYDIR); err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	for _, c := range []struct {
		path string
		line bool
	}{{path, false}, {filepath.Join(logs, "a-long-name-of-a-log"), true}, {path, false}} {
		file := must.Get(os.OpenFile(c.path, os.O_RDWR|os.O_CREATE, 0o600))(t)
		file.Close()
		if s := e.wait(time.Now().Add(soon)); !s.opened || s.line != c.line {
			t.Errorf("%s: %+v", c.path, s)
		}
		e.rearm()
	}
}

// A line of a daemon ends a rest between scans that others cause by opening the device, also if they have done so in
// this rest. It ends it once in a time only.
func TestALineEndsARest(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	logs := t.TempDir()
	r.Logs = []string{logs}
	r.watch()
	r.still()
	began := time.Now()
	r.scan(began)
	r.budget.free = time.Time{}
	r.scans.next, r.scans.rested = began.Add(time.Hour), began.Add(time.Minute) // the account of strangers is used up
	writes := func(path string) {
		file := must.Get(os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600))(t)
		file.Close()
		now := time.Now()
		r.scanIsDue(r.events.wait(now.Add(soon/10)), now)
	}
	if writes(r.kernel.path(memoryFile)); r.scans.next != r.scans.rested {
		t.Fatalf("an opening causes a scan in %v", time.Until(r.scans.next))
	}
	if writes(filepath.Join(logs, "first")); time.Until(r.scans.next) > eventScan {
		t.Errorf("a line causes a scan in %v", time.Until(r.scans.next))
	}
	r.scan(time.Now())
	r.scans.next, r.scans.rested = began.Add(time.Hour), began.Add(time.Minute)
	if writes(filepath.Join(logs, "second")); time.Until(r.scans.next) > linesEvery {
		t.Errorf("a second line causes a scan in %v", time.Until(r.scans.next))
	}
}

// A scan ends when a client dies, and the next scan goes on from there. A death is told once.
func TestAScanEndsWhenAClientDies(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	first, second := r.child(opens+waits), r.child(opens+waits)
	if r.scan(time.Now()); len(r.living) != 2 {
		t.Fatalf("%d clients", len(r.living))
	}
	_ = first.Process.Kill()
	_ = first.Wait()
	if r.scan(time.Now()); !r.scans.cut || !r.scans.next.Equal(r.scans.ended) {
		t.Errorf("cut %v, the next scan is in %v", r.scans.cut, r.scans.next.Sub(r.scans.ended))
	}
	if s := r.events.wait(time.Now()); !slices.Equal(s.died, []int{first.Process.Pid}) {
		t.Errorf("%+v", s)
	} else {
		r.clientDied(s.died[0], time.Now())
	}
	if r.scan(time.Now()); r.scans.cut || r.living[second.Process.Pid] == nil {
		t.Error("the next scan does not go on")
	}
}

// What a scan has taken of the events ends the next wait.
func TestEventsDuringAScanAreNotLost(t *testing.T) {
	e := newEvents(t)
	path := filepath.Join(devices(t), "nvidia-uvm")
	must.OK(t, e.watch(path, unix.IN_OPEN))
	for _, happen := range []func(){e.nudge, func() {
		if file, err := os.Open(path); err == nil {
			file.Close()
		}
	}} {
		if happen(); e.anyDied() {
			t.Error("a client has died")
		}
		began := time.Now()
		if s := e.wait(began.Add(soon)); !s.any || time.Since(began) > soon/2 {
			t.Errorf("%+v after %v", s, time.Since(began))
		}
	}
}
