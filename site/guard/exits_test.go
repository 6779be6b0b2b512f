// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ends are ways in which a process ends, and how wait(2) reports them.
var ends = []struct {
	script string
	want   string
	order  bool
}{
	{"exit 0", "status 0", true},
	{"exit 3", "status 3", false},
	{"kill -9 $$", "signal 9", false},
	{"kill -11 $$", "signal 11", false},
}

// ended starts a script and waits until it has ended. The script is a zombie until reap is called.
func ended(t *testing.T, script string, before func(pid int)) (pidfd, pid int, reap func()) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read x; "+script)
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err = unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pidfd) })
	before(cmd.Process.Pid)
	in.Close()
	if err := readable(pidfd, soon); err != nil {
		t.Fatal(err)
	}
	return pidfd, cmd.Process.Pid, func() { _ = cmd.Wait() }
}

func (s exitStatus) check(t *testing.T, source, want string, order bool) {
	t.Helper()
	if s.String() != want || s.inOrder() != order {
		t.Errorf("%s: %q, in order %v; want %q, %v", source, s, s.inOrder(), want, order)
	}
}

// Each source knows how a process has ended.
func TestHowAProcessEnded(t *testing.T) {
	k := newKernel(Options{Devices: t.TempDir()})
	defer k.asks.close()
	var err error
	e := exits{seen: map[int]uint32{}}
	if e.connector, err = openConnector(); err != nil {
		t.Logf("the proc connector is not tested: %v", err)
	}
	defer e.close()
	for _, end := range ends {
		pidfd, pid, reap := ended(t, end.script, func(pid int) { e.follow(map[int]*client{pid: {}}) })
		zombieStatus(k, pid).check(t, "a zombie", end.want, end.order)
		if s := zombieStatus(k, 1); s.known {
			t.Errorf("a process that runs: %q", s)
		}
		reap()
		if s := zombieStatus(k, pid); s.known {
			t.Errorf("after the zombie was reaped: %q", s)
		}
		if s := pidfdStatus(pidfd); s.known {
			s.check(t, "a pidfd", end.want, end.order)
		} else {
			t.Log("this kernel's pidfds do not report a status")
		}
		if e.connector < 0 {
			continue
		}
		e.drain()
		raw, known := e.seen[pid]
		exitStatus{raw, known}.check(t, "the connector", end.want, end.order)
	}
}

// The connector reports the ends of the processes that are followed, however many others end. Its socket does not
// fill.
func TestOtherProcessesDoNotFillTheConnector(t *testing.T) {
	fd, err := openConnector()
	if err != nil {
		t.Skip(err)
	}
	e := exits{connector: fd, seen: map[int]uint32{}}
	defer e.close()
	_, pid, reap := ended(t, "exit 4", func(pid int) {
		e.follow(map[int]*client{pid: {}})
		if out, err := exec.Command("/bin/sh", "-c", "for i in $(seq 3000); do (exit 1); done; true").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	reap()
	e.drain()
	if raw := e.seen[pid]; len(e.seen) != 1 || raw != 4<<8 {
		t.Errorf("seen: %v", e.seen)
	}
	e.follow(nil)
	if len(e.seen) > 0 {
		t.Errorf("a process that is no client any more is known: %v", e.seen)
	}
}

func TestAtLeast(t *testing.T) {
	for release, want := range map[string]bool{"6.15.0": true, "6.18.44-fc": true, "7.0": true,
		"6.8.0-40-generic": false, "4.18.0-553.el8_10.x86_64": false, "": false} {
		if atLeast(release, 6, 15) != want {
			t.Errorf("%q: %v", release, !want)
		}
	}
}

// A wait without an end fails, and does not hang.
func TestReadableHasADeadline(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := readable(fd, time.Millisecond); err == nil {
		t.Error("an event that never came was reported")
	}
}
