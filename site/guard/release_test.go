// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

func TestReleaseReason(t *testing.T) {
	const hold = 10 * time.Second
	beside := func(change func(*situation)) situation { // beside a neighbour, with plenty of room
		s := situation{age: time.Second, neighbours: true, gpuKnown: true, roomy: true}
		change(&s)
		return s
	}
	for _, c := range []struct {
		name  string
		s     situation
		want  string
		pause bool
	}{
		{"no other client lives, and nothing is known", situation{}, noNeighbour, false},
		{"no other client lives, after hold", situation{age: hold, gpuKnown: true}, noNeighbour, false},
		{"the last client, and the GPUs are at work", situation{age: hold - 1, gpuKnown: true}, "", false},
		{"the last client, and the GPUs' work is known soon", situation{pending: true}, "", false},
		{"the last client ended in order, and its memory may be needed", situation{gpuKnown: true, inOrder: true}, endedWell, false},
		{"the GPUs have been idle", beside(func(s *situation) { s.idle, s.roomy, s.short = true, false, true }), workDone, false},

		{"in flight, with room", beside(func(*situation) {}), "", false},
		{"in flight, with room, for an hour, beside a newer client", beside(func(s *situation) { s.age, s.newer = time.Hour, true }), "", false},
		{"in flight, with less than half of the room", beside(func(s *situation) { s.roomy = false }), "", false},
		{"in flight, and the room is needed", beside(func(s *situation) { s.roomy, s.short = false, true }), "", true},
		{"early", beside(func(s *situation) { s.age, s.short = pauseAfter-1, true }), "", false},
		{"early, beside a newer client", beside(func(s *situation) { s.age, s.short, s.newer = 0, true, true }), "", true},
		{"until hold", beside(func(s *situation) { s.age, s.short, s.paused = hold-1, true, true }), "", true},
		{"after hold, before a pause", beside(func(s *situation) { s.age, s.short = hold, true }), "", true},
		{"after hold and a pause", beside(func(s *situation) { s.age, s.short, s.paused = hold, true, true }), holdOver, false},
		{"after hold and a pause, beside others", beside(func(s *situation) {
			s.age, s.short, s.paused, s.others = time.Hour, true, true, true
		}), "", true},
		{"beside others, with own work done", beside(func(s *situation) { s.idle, s.others = true, true }), workDone, false},
		{"the last client, beside others", situation{age: hold, gpuKnown: true, others: true}, noNeighbour, false},
		{"after hold and a pause, with room", beside(func(s *situation) { s.age, s.paused = hold, true }), "", false},

		{"in order, and it never had a context", beside(func(s *situation) { s.inOrder, s.noContext = true, true }), noContext, false},
		{"killed, and its context is not listed", beside(func(s *situation) { s.noContext = true }), "", false},
		{"in order, with room", beside(func(s *situation) { s.inOrder = true }), "", false},
		{"in order, with less than half of the room", beside(func(s *situation) { s.inOrder, s.roomy = true, false }), endedWell, false},
		{"in order, and the room is known soon", beside(func(s *situation) { s.age, s.inOrder, s.roomy, s.pending = 0, true, false, true }), "", false},
		{"in order, and the room is known late",
			beside(func(s *situation) { s.age, s.inOrder, s.roomy, s.pending = usageStart-1, true, false, true }), "", false},
		{"in order, and the room is never known",
			beside(func(s *situation) { s.age, s.inOrder, s.roomy = usageStart, true, false }), endedWell, false},
		{"in order, and the room is known late, and places are few",
			beside(func(s *situation) { s.inOrder, s.roomy, s.tight, s.pending = true, false, true, true }), endedWell, false},

		{"in order, and the room is needed, and known soon", beside(func(s *situation) {
			s.age, s.newer, s.pending, s.inOrder, s.roomy, s.short = 0, true, true, true, false, true
		}), "", false},

		{"nothing is known, beside a newer client", situation{unknown: newcomerHold - 1, neighbours: true, newer: true, short: true}, "", false},
		{"nothing is known, beside a newer client, later", situation{unknown: newcomerHold, neighbours: true, newer: true}, holdOver, false},
		{"nothing is known yet, beside a newer client", situation{unknown: newcomerHold, neighbours: true, newer: true, pending: true}, "", false},
		{"nothing is known", situation{unknown: hold - 1, neighbours: true}, "", false},
		{"nothing is known, after hold", situation{unknown: hold, neighbours: true}, holdOver, false},
	} {
		must.Equal(t, c.name, c.s.releaseReason(hold), c.want)
		must.Equal(t, fmt.Sprintf("%s: needs a pause", c.name), c.s.releaseReason(hold) == "" && c.s.needsPause(), c.pause)
	}
}

// counted counts the clients, as each turn does.
func (g *Guard) counted(now time.Time) *Guard {
	g.countClients(now)
	return g
}

// A GPU's places are taken by its clients, living and dead. A fork without files of its own, such as a data loader's
// worker, has no place.
func TestPlaces(t *testing.T) {
	const clients, places = 60, 30
	c := &client{gpus: 1, files: []*file{{}}}
	for _, all := range []struct {
		name string
		dead int
		gpus uint64
		fork bool
		full bool
	}{
		{"half of the places are taken", places - 1, 1, false, false},
		{"more than half of the places are taken", places, 1, false, true},
		{"on another GPU", places, 2, false, false},
		{"forks", places, 1, true, false},
		{"without a GPU", places, 0, false, false},
	} {
		g := &Guard{Options: Options{GuardSettings: lease.GuardSettings{Clients: clients}, Minors: []int{0, 1}}, living: map[int]*client{1: c}}
		for i := range all.dead {
			is := proc.Process{PID: 10 + i}
			owner := is
			if all.fork {
				owner.PID = 2
			}
			part := client{proc: is, gpus: all.gpus, files: []*file{{owner: owner}}}
			earlier := part
			g.dead = append(g.dead, &earlier, &part) // this client closed some files before it died
		}
		c.needed = false
		if s := g.counted(time.Now()).situation(c, time.Now()); s.short != all.full {
			t.Errorf("%s: short %v", all.name, s.short)
		}
	}
}

func TestShareGPU(t *testing.T) {
	for _, c := range []struct {
		a, b uint64
		want bool
	}{{1, 1, true}, {1, 2, false}, {3, 2, true}, {0, 2, true}, {2, 0, true}, {0, 0, true}} {
		must.Equal(t, fmt.Sprintf("%b and %b", c.a, c.b), shareGPU(&client{gpus: c.a}, &client{gpus: c.b}), c.want)
	}
}

// The memory files are closed before the control files. inotify reports the closes in their order.
func TestMemoryFilesCloseFirst(t *testing.T) {
	r := stillGuard(t, time.Minute)
	folder := t.TempDir()
	closes, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must.OK(t, err)
	defer unix.Close(closes)
	must.Get(unix.InotifyAddWatch(closes, folder, unix.IN_CLOSE))(t)
	const files = 40
	c := &client{died: time.Now()}
	for i := range files {
		f := &file{kind: controlFile, number: i, users: 1}
		name := folder + "/c" + strconv.Itoa(i)
		if i%2 == 1 {
			f.kind, name = memoryFile, folder+"/m"+strconv.Itoa(i)
		}
		if f.fd, err = unix.Open(name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600); err != nil {
			t.Fatal(err)
		}
		c.files = append(c.files, f)
		r.files++
	}
	r.dead = []*client{c}
	r.release(time.Now())
	if !r.awaitResults(soon, func() bool { return r.files == 0 }) {
		t.Fatalf("%d files are not closed", r.files)
	}
	var buffer [8192]byte
	n := must.Get(unix.Read(closes, buffer[:]))(t)
	order := ""
	for rest := buffer[:n]; len(rest) > 0; {
		name := int(binary.NativeEndian.Uint32(rest[12:]))
		order += string(rest[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+1])
		rest = rest[unix.SizeofInotifyEvent+name:]
	}
	must.Equal(t, "closed in the order", order, strings.Repeat("m", files/2)+strings.Repeat("c", files/2))
}

// A process of another job counts until it is recognised.
func TestADismissedProcessDoesNotCount(t *testing.T) {
	r := stillGuard(t, time.Minute)
	for _, c := range []struct {
		seen bool
		want int
	}{{true, 1}, {false, 2}} {
		r.state.ClientsSeen = 2
		other := &client{proc: proc.Process{PID: 1 << 30, Start: 1}, pidfd: -1, others: true, seen: c.seen}
		r.living[other.proc.PID] = other
		r.names[other.proc] = "rank 3"
		if r.dismiss(other); len(r.names) > 0 {
			t.Errorf("names stay: %v", r.names)
		}
		if r.state.ClientsSeen != c.want || len(r.living) > 0 {
			t.Errorf("seen %v: %d seen, want %d", c.seen, r.state.ClientsSeen, c.want)
		}
	}
}

// The maximum is that of the clients, whatever the order in which processes of other jobs are recognised.
func TestADismissedProcessLowersThePeak(t *testing.T) {
	for _, order := range [][]int{{1, 2}, {2, 1}} {
		r := stillGuard(t, time.Minute)
		var all []*client
		for n := range 3 { // the first is a client
			p := proc.Process{PID: 1<<30 + n, Start: 1}
			c := &client{proc: p, pidfd: -1, files: []*file{{fd: -1, users: 1, owner: p}}}
			r.living[c.proc.PID] = c
			r.count(c)
			all = append(all, c)
		}
		if r.state.ClientsPeak != 3 {
			t.Errorf("%d at the same time, want 3 until they are recognised", r.state.ClientsPeak)
		}
		for _, n := range order {
			r.dismiss(all[n])
		}
		if r.state.ClientsPeak != 1 || r.state.ClientsSeen != 1 {
			t.Errorf("order %v: %d clients, %d at the same time, want 1", order, r.state.ClientsSeen, r.state.ClientsPeak)
		}
	}
}

// Files that another client also has are not closed with the first client.
func TestSharedFilesStay(t *testing.T) {
	r := stillGuard(t, time.Minute)
	fd := must.Get(unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
	f := &file{fd: fd, kind: memoryFile, number: 5, users: 2}
	r.files = 1
	r.releaseClient(&client{files: []*file{f}}, noNeighbour)
	if (<-r.results)(time.Now()); r.files != 1 || f.users != 1 {
		t.Errorf("%d files, %d users", r.files, f.users)
	}
	r.releaseClient(&client{files: []*file{f}}, noNeighbour)
	if (<-r.results)(time.Now()); r.files != 0 {
		t.Errorf("%d files", r.files)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the file is still open: %v", err)
	}
}

// While the host's memory is short, the files of a client that may have work in flight are held, and its neighbours
// are to be paused. The files of a client that ended in order are closed.
func TestShortHostMemory(t *testing.T) {
	r := stillGuard(t, time.Minute)
	r.kernel.groups = t.TempDir()
	full := r.kernel.groups + "/full"
	group(t, full, map[string]string{"memory.max": "64000", "memory.current": "63999", "cgroup.procs": strconv.Itoa(os.Getpid()) + "\n"})
	now := time.Now()
	r.living[0] = &client{gpus: 1, pidfd: -1, files: []*file{{fd: -1}}}
	killed := &client{proc: proc.Process{PID: 8}, gpus: 1, group: full, died: now.Add(-time.Second / 2)}
	well := &client{proc: proc.Process{PID: 9}, gpus: 1, group: full, died: now.Add(-time.Second / 2), inOrder: true}
	r.dead = []*client{killed, well}
	r.usage.gauge, r.usage.asOf, r.usage.asked = &gauge.Gauge{Child: &proc.Child{}}, now, now
	r.usage.take([]gauge.Usage{{Known: true, TotalMiB: 1000, FreeMiB: 900, Clients: map[int]int{8: 1, 9: 1}}, {Known: true, TotalMiB: 1000, FreeMiB: 900}})
	r.usage.answered = false
	needing := r.release(now)
	if len(needing) != 1 || needing[0] != killed || len(r.dead) != 1 || r.Guard.state.Released[endedWell] != 1 {
		t.Errorf("%d need a pause, %d dead, %+v", len(needing), len(r.dead), r.Guard.state)
	}
	r.usage.gauge = nil
}

// A client that has ended in order does not keep newcomers waiting until hold is over, if its room was needed for a
// moment and there is plenty of room now.
//
// Contract: G2
func TestRoomThatWasNeededForAMoment(t *testing.T) {
	now := time.Now()
	g := &Guard{Options: Options{GuardSettings: lease.GuardSettings{Hold: lease.Duration(time.Minute), Clients: 48}, Minors: []int{3}}, kernel: &kernel{memories: map[string]*memory{}}}
	g.usage.gauge, g.usage.asked = &gauge.Gauge{Child: &proc.Child{}}, now
	died := now.Add(-10 * time.Millisecond)
	g.usage.take([]gauge.Usage{{Known: true, TotalMiB: 1000, FreeMiB: 900, Clients: map[int]int{8: 10, 9: 10}}})
	c := &client{proc: proc.Process{PID: 9}, gpus: 1, died: died, inOrder: true}
	if s := g.counted(now).situation(c, now); s.short || !s.roomy {
		t.Fatalf("%+v: want plenty of room", s)
	}
	c.needed = true
	if s := g.counted(now).situation(c, now); !s.short || s.releaseReason(time.Duration(g.Hold)) != endedWell {
		t.Errorf("%+v: %q", s, s.releaseReason(time.Duration(g.Hold)))
	}
}

// A pause that has failed before hold is over does not let go of files at hold: another one must have failed after
// that.
//
// Contract: G2
func TestAPauseThatFailedBeforeHold(t *testing.T) {
	now := time.Now()
	const hold = time.Minute
	c := clientOf(9, 1)
	c.needed, c.died = true, now.Add(-hold)
	for failed, want := range map[time.Duration]string{-1: "", 1: holdOver} { // after hold
		g := &Guard{Options: Options{GuardSettings: lease.GuardSettings{Hold: lease.Duration(hold), Clients: 48}, Minors: []int{3}}, living: map[int]*client{8: clientOf(8, 1)}}
		g.pauses.failed = now.Add(failed)
		g.usage.gauge, g.usage.asked = &gauge.Gauge{Child: &proc.Child{}}, now
		g.usage.take([]gauge.Usage{{Known: true, TotalMiB: 100, Samples: []gauge.Sample{{Micros: uint64(now.UnixMicro()), Percent: 50}}}})
		if s := g.counted(now).situation(c, now); s.releaseReason(hold) != want {
			t.Errorf("failed %v after hold: %q, want %q: %+v", failed, s.releaseReason(hold), want, s)
		}
	}
}

// While the use of a GPU is known, its clients' work is held. That it is not known for a moment lets nothing go,
// however old the death is: the driver may answer late, or this process may have been stopped.
//
// Contract: G2
func TestUsageThatIsLostForATime(t *testing.T) {
	const hold = time.Minute
	died := time.Now()
	for _, newer := range []bool{false, true} {
		limit := hold
		g := &Guard{Options: Options{GuardSettings: lease.GuardSettings{Hold: lease.Duration(hold), Clients: 48}, Minors: []int{3}}, living: map[int]*client{8: clientOf(8, 1)}}
		if newer {
			g.living[8].opened, limit = died.Add(time.Second), newcomerHold
		}
		c := clientOf(9, 1)
		g.addDead(c, died)
		g.usage.gauge = &gauge.Gauge{Child: &proc.Child{}}
		known := func(at time.Time) {
			g.usage.asked = at
			g.usage.take([]gauge.Usage{{Known: true, TotalMiB: 100, FreeMiB: 90, Samples: []gauge.Sample{{Micros: uint64(at.UnixMicro()), Percent: 50}}}})
		}
		reason := func(at time.Time) string { return g.counted(at).situation(c, at).releaseReason(hold) }
		for after := time.Duration(0); after < 2*time.Hour; after += hold / 2 {
			at := died.Add(after)
			if known(at); reason(at) != "" {
				t.Fatalf("newer %v: known, %v after the death: %q", newer, after, reason(at))
			}
			lost := at.Add(10 * time.Second) // the guard was stopped until then
			if first, last := reason(lost), reason(lost.Add(limit-1)); first != "" || last != "" {
				t.Fatalf("newer %v: not known for a moment: %q, a little less than %v: %q", newer, first, limit, last)
			}
			if got := reason(lost.Add(limit)); got != holdOver {
				t.Fatalf("newer %v: not known for %v: %q", newer, limit, got)
			}
		}
	}
	g := &Guard{Options: Options{GuardSettings: lease.GuardSettings{Hold: lease.Duration(hold), Clients: 48}, Minors: []int{3}}, living: map[int]*client{8: clientOf(8, 1)}}
	c := clientOf(9, 1)
	g.addDead(c, died)
	for after, want := range map[time.Duration]string{hold - 1: "", hold: holdOver} { // without gpu-usage
		if got := g.counted(died).situation(c, died.Add(after)).releaseReason(hold); got != want {
			t.Errorf("never known, %v after the death: %q", after, got)
		}
	}
}
