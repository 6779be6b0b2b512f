// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

func TestLetGo(t *testing.T) {
	const hold = 10 * time.Second
	short := minHold - time.Millisecond
	for _, c := range []struct {
		name string
		s    situation
		hold time.Duration
		want string
	}{
		{"no other client lives", situation{}, hold, noNeighbour},
		{"no other client lives, after a while", situation{age: time.Minute, gpuKnown: true}, hold, noNeighbour},
		{"too early, even if memory is short", situation{age: short, neighbours: true, newer: true, gpuKnown: true, gpuShort: true, hostShort: true}, hold, ""},
		{"too early, even if the hold is 0", situation{age: short, neighbours: true}, 0, ""},
		{"the hold is 0", situation{age: minHold, neighbours: true}, 0, holdOver},
		{"held", situation{age: hold - 1, neighbours: true}, hold, ""},
		{"over", situation{age: hold, neighbours: true}, hold, holdOver},
		{"over, and no client needs the memory", situation{age: 10 * hold, neighbours: true, gpuKnown: true}, hold, ""},
		{"over, and a newer client may need the memory", situation{age: hold, neighbours: true, newer: true, gpuKnown: true}, hold, holdOver},
		{"over, and the GPU is short, and no newer client is there", situation{age: hold, neighbours: true, gpuKnown: true, gpuShort: true}, hold, ""},
		{"the GPUs have been idle", situation{age: short, neighbours: true, gpuKnown: true, idle: true}, hold, workDone},
		{"the last client, and the GPUs are at work", situation{age: hold - 1, gpuKnown: true}, hold, ""},
		{"the last client, and the GPUs' work is known soon", situation{pending: true}, hold, ""},
		{"a newer client, and the GPUs' work is known soon", situation{age: newcomerHold, neighbours: true, newer: true, pending: true}, hold, ""},
		{"the GPU is short and no newer client is there", situation{age: hold / 2, neighbours: true, gpuKnown: true, gpuShort: true}, hold, ""},
		{"the GPU is short for a newer client", situation{age: minHold, neighbours: true, newer: true, gpuKnown: true, gpuShort: true}, hold, gpuMemory},
		{"the host is short", situation{age: minHold, neighbours: true, hostShort: true}, hold, hostMemory},
		{"the GPU serves few more clients", situation{age: newcomerHold, neighbours: true, newer: true, full: true, gpuKnown: true}, hold, noPlace},
		{"the GPU serves few more clients, and it is too early", situation{age: newcomerHold - 1, neighbours: true, newer: true, full: true, gpuKnown: true}, hold, ""},
		{"the GPU serves few more clients, and no client comes", situation{age: hold + 1, neighbours: true, full: true, gpuKnown: true}, hold, ""},
		{"a newer client, early", situation{age: newcomerHold - 1, neighbours: true, newer: true}, hold, ""},
		{"a newer client, and the GPU's memory is not known", situation{age: newcomerHold, neighbours: true, newer: true}, hold, holdOver},
		{"a newer client, and the GPU has enough memory", situation{age: newcomerHold, neighbours: true, newer: true, gpuKnown: true}, hold, ""},
	} {
		if got := c.s.releaseReason(c.hold); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A GPU's places are taken by its clients, living and dead. A fork without files of its own, such as a data loader's
// worker, has no place.
func TestPlaces(t *testing.T) {
	const clients, places = 60, 56
	c := &client{gpus: 1, files: []*file{{}}}
	for _, all := range []struct {
		name string
		dead int
		gpus uint64
		fork bool
		full bool
	}{
		{"one place is left", places - 1, 1, false, false},
		{"no place is left", places, 1, false, true},
		{"on another GPU", places, 2, false, false},
		{"forks", places, 1, true, false},
		{"without a GPU", places, 0, false, false},
	} {
		g := &Guard{Options: Options{Clients: clients}, living: map[int]*client{1: c}}
		for i := range all.dead {
			is := site.Process{PID: 10 + i}
			owner := is
			if all.fork {
				owner.PID = 2
			}
			part := client{proc: is, gpus: all.gpus, files: []*file{{owner: owner}}}
			g.dead = append(g.dead, &part, &part) // this client closed some files before it died
		}
		if s := g.situation(c, time.Now()); s.full != all.full {
			t.Errorf("%s: full %v", all.name, s.full)
		}
	}
}

func TestShareGPU(t *testing.T) {
	for _, c := range []struct {
		a, b uint64
		want bool
	}{{1, 1, true}, {1, 2, false}, {3, 2, true}, {0, 2, true}, {2, 0, true}, {0, 0, true}} {
		if got := shareGPU(&client{gpus: c.a}, &client{gpus: c.b}); got != c.want {
			t.Errorf("%b and %b: %v", c.a, c.b, got)
		}
	}
}

// The memory files are closed before the control files. Ends of pipes replace the files, because the other end shows
// the close.
func TestMemoryFilesCloseFirst(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.still()
	pipe := func() (seen, held int) {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		return ends[0], ends[1]
	}
	closed := func(fd int) bool { return pollable(fd) }
	for range 20 {
		c := &client{died: time.Now()}
		var control, memory []int
		for i := range 40 {
			seen, held := pipe()
			defer unix.Close(seen)
			kind := controlFile
			if i%2 == 1 {
				kind, memory = memoryFile, append(memory, seen)
			} else {
				control = append(control, seen)
			}
			c.files = append(c.files, &file{held, kind, i, 1, c.proc})
			r.files++
		}
		r.dead = []*client{c}
		r.release(time.Now())
		for left := control; len(left) > 0; {
			if !closed(left[0]) {
				continue
			}
			for _, fd := range memory {
				if !closed(fd) {
					t.Fatal("a control file is closed before a memory file")
				}
			}
			left = left[1:]
		}
	}
}

// A process of another job counts until it is recognised.
func TestADismissedProcessDoesNotCount(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.still()
	for _, c := range []struct {
		seen bool
		want int
	}{{true, 1}, {false, 2}} {
		r.state.Seen = 2
		other := &client{proc: site.Process{PID: 1 << 30, Start: 1}, pidfd: -1, others: true, seen: c.seen}
		r.living[other.proc.PID] = other
		if r.dismiss(other); r.state.Seen != c.want || len(r.living) > 0 {
			t.Errorf("seen %v: %d seen, want %d", c.seen, r.state.Seen, c.want)
		}
	}
}

// Files that another client also has are not closed with the first client.
func TestSharedFilesStay(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.still()
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := &file{fd: fd, kind: memoryFile, number: 5, users: 2}
	r.files = 1
	r.releaseClient(&client{files: []*file{f}}, noNeighbour)
	if closed := <-r.closed; closed != 0 || f.users != 1 {
		t.Errorf("%d closed, %d users", closed, f.users)
	}
	r.releaseClient(&client{files: []*file{f}}, noNeighbour)
	if closed := <-r.closed; closed != 1 {
		t.Errorf("%d closed", closed)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the file is still open: %v", err)
	}
	r.files = 0
}

// While memory is short, the dead clients are released one by one, because the first one's memory may be enough.
func TestOneAfterTheOtherWhileMemoryIsShort(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.still()
	r.kernel.groups = t.TempDir()
	full := r.kernel.groups + "/full"
	group(t, full, map[string]string{"memory.max": "64000", "memory.current": "63999", "cgroup.procs": strconv.Itoa(os.Getpid()) + "\n"})
	now := time.Now()
	r.living[0] = &client{gpus: 1, pidfd: -1, files: []*file{{fd: -1}}}
	for i := range 3 {
		r.dead = append(r.dead, &client{gpus: 1, group: full, died: now.Add(-time.Duration(3-i) * time.Second)})
	}
	first := r.dead[0]
	for left := 2; left >= 0; left-- {
		r.release(now)
		r.release(now) // before the next check
		if len(r.dead) != left || left == 2 && r.dead[0] == first {
			t.Fatalf("%d dead, want %d", len(r.dead), left)
		}
		now = now.Add(heldCheck)
	}
	if r.Guard.state.Released[hostMemory] != 3 {
		t.Errorf("%+v", r.Guard.state)
	}
}
