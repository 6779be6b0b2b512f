// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

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
