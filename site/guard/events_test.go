// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"os"
	"os/exec"
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
	must.Hold(t, err != nil && err.Error() == "cannot wait for events: too many open files", "%v", err)
	again, err := unix.Dup(0)
	must.Hold(t, err == nil && again == next, "descriptor %d, %v, want %d", again, err, next)
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

// spins counts the waits of 100 ms that an event ends at once. The first ones may be due.
func spins(e *events, due int) (turns int) {
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end) && turns <= due; {
		if s := e.wait(end); s.any {
			turns++
		}
	}
	return turns
}

// A taker, or a notice that waits, may have a duplicate of a client's pidfd for as long as a file system of the user's
// likes. The kernel keeps the event of an open file, not of a number. So the death of a client must end one wait.
func TestADuplicateOfADeadClientsPidfdEndsNoWait(t *testing.T) {
	for name, forgotten := range map[string]bool{"the client is forgotten": true, "its death is not taken": false} {
		t.Run(name, func(t *testing.T) {
			e := newEvents(t)
			child := exec.Command("sleep", "1000")
			must.OK(t, child.Start())
			pid := child.Process.Pid
			pidfd := must.Get(unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK))(t)
			must.OK(t, e.follow(pidfd, pid))
			duplicate := must.Get(unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0))(t)
			defer unix.Close(duplicate)
			_ = child.Process.Kill()
			_ = child.Wait()
			if s := e.wait(time.Now().Add(time.Minute)); !slices.Equal(s.died, []int{pid}) {
				t.Fatalf("the death is not seen: %+v", s)
			}
			if forgotten {
				e.unfollow(pidfd)
			} else {
				defer e.unfollow(pidfd)
			}
			if turns := spins(e, 0); turns > 0 || e.anyDied() {
				t.Errorf("the death ends further waits")
			}
		})
	}
}

// A pidfd that is given up while its process lives reports nothing when the process dies.
func TestAPidfdThatIsGivenUpReportsNoDeath(t *testing.T) {
	e := newEvents(t)
	child := exec.Command("sleep", "1000")
	must.OK(t, child.Start())
	pidfd, err1 := unix.PidfdOpen(child.Process.Pid, unix.PIDFD_NONBLOCK)
	duplicate, err2 := unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	defer unix.Close(duplicate)
	must.OK(t, e.follow(pidfd, child.Process.Pid))
	e.unfollow(pidfd)
	_ = child.Process.Kill()
	_ = child.Wait()
	if turns := spins(e, 0); turns > 0 {
		t.Error("the death of a process that is no client ends a wait")
	}
}

// Whatever makes a descriptor ready, and however long it stays so, it ends one wait until the guard asks again.
func TestEachEventEndsOneWait(t *testing.T) {
	overflow := func(t *testing.T, e *events, path string) {
		t.Helper()
		data := make([]byte, 0)
		for range 40_000 { // more than fs.inotify.max_queued_events; two kinds in turns, because equal lines are merged
			fd := must.Get(unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
			_, _ = unix.Read(fd, data)
			unix.Close(fd)
		}
	}
	cases := map[string]func(t *testing.T, e *events){
		"a queue of openings that overflows": func(t *testing.T, e *events) {
			path := t.TempDir()
			must.OK(t, e.watch(path, unix.IN_OPEN|unix.IN_CLOSE))
			overflow(t, e, path)
		},
		"a queue of lines that overflows": func(t *testing.T, e *events) {
			path := t.TempDir()
			must.OK(t, e.watch(path, unix.IN_OPEN|unix.IN_CLOSE|unix.IN_ONLYDIR))
			overflow(t, e, path)
		},
		"a nudge": func(_ *testing.T, e *events) { e.nudge() },
		"a thousand nudges": func(_ *testing.T, e *events) {
			for range 1000 {
				e.nudge()
			}
		},
		"a watched folder that goes": func(t *testing.T, e *events) {
			path := t.TempDir()
			must.OK(t, e.watch(path, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW))
			must.OK(t, unix.Rmdir(path))
		},
	}
	for name, cause := range cases {
		t.Run(name, func(t *testing.T) {
			e := newEvents(t)
			cause(t, e)
			if turns := spins(e, 1); turns != 1 {
				t.Errorf("%d waits have ended, want 1", turns)
			}
		})
	}
}
