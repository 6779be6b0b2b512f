// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"github.com/slurm-mps/slurm-mps/site/slurm/witness"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// clientOf returns a client with a file of its own.
func clientOf(pid int, gpus uint64) *client {
	is := proc.Process{PID: pid, Start: 1}
	return &client{proc: is, gpus: gpus, pidfd: -1, files: []*file{{fd: -1, owner: is}}}
}

// A newcomer is a neighbour that has opened its files after the death. A room that was needed once stays needed.
//
// Contract: G2
func TestTheSituationOfADeadClient(t *testing.T) {
	died := time.Now()
	now := died.Add(time.Minute)
	c := clientOf(1, 1)
	c.opened, c.died = died.Add(-time.Hour), died
	fork := clientOf(3, 1)
	fork.files[0].owner.PID = 2
	for _, one := range []struct {
		name              string
		beside            *client
		opened            time.Duration // after the death
		neighbours, newer bool
	}{
		{"alone", nil, 0, false, false},
		{"an older neighbour", clientOf(2, 1), -time.Second, true, false},
		{"a newer neighbour", clientOf(2, 1), time.Second, true, true},
		{"on another GPU", clientOf(2, 2), time.Second, false, false},
		{"a fork", fork, time.Second, false, false},
	} {
		g := &Guard{Options: Options{GuardSettings: lease.GuardSettings{Clients: 48, Hold: lease.Duration(time.Minute)}, Minors: []int{0, 1}}, living: map[int]*client{}, dead: []*client{c}}
		if one.beside != nil {
			one.beside.opened = died.Add(one.opened)
			g.living[one.beside.proc.PID] = one.beside
		}
		s := g.counted(now).situation(c, now)
		must.Hold(t, s.neighbours == one.neighbours && s.newer == one.newer && s.age == time.Minute && !s.short,
			"%s: %+v", one.name, s)
	}
	g := &Guard{Options: Options{GuardSettings: lease.GuardSettings{Clients: 48}}, dead: []*client{c}}
	for _, short := range []bool{true, false} {
		c.hostShort = short
		if s := g.counted(now).situation(c, now); !s.short {
			t.Errorf("host memory short %v: the room is not needed any more", short)
		}
	}
}

// What is known of one GPU says nothing about another GPU of the same client.
func TestAClientOfTwoGPUs(t *testing.T) {
	now := time.Now()
	empty, full := gauge.Usage{Known: true, TotalMiB: 100, FreeMiB: 100}, gauge.Usage{Known: true, TotalMiB: 100}
	for _, c := range []struct {
		name        string
		usage       []gauge.Usage
		known, room bool
	}{
		{"both are known", []gauge.Usage{empty, empty}, true, true},
		{"the first is not known", []gauge.Usage{{}, empty}, false, false},
		{"the second is not known", []gauge.Usage{empty, {}}, false, false},
		{"the first is full", []gauge.Usage{full, empty}, true, false},
	} {
		g := Guard{usage: usages{gauge: &gauge.Gauge{Child: &proc.Child{}}, asked: now}}
		g.usage.take(c.usage)
		s := situation{roomy: true}
		if g.counted(now).addUsage(&client{died: now, gpus: 3}, &s, now); s.gpuKnown != c.known || s.roomy != c.room {
			t.Errorf("%s: %+v", c.name, s)
		}
		// The same answer says nothing about a client that died later.
		for _, age := range []time.Duration{1, usageAge, usageAge + 1} {
			s, later := situation{roomy: true}, now.Add(age)
			if g.counted(later).addUsage(&client{died: later, gpus: 3}, &s, later); s.roomy || s.gpuKnown {
				t.Errorf("%s, before the death: %+v", c.name, s)
			}
		}
	}
}

// The answer of gpu-usage is awaited for usageStart after a death, or after the start of gpu-usage.
func TestAnAnswerThatIsAwaited(t *testing.T) {
	died := time.Now()
	c := &client{died: died}
	for _, one := range []struct {
		name  string
		u     usages
		after time.Duration
		want  bool
	}{
		{"gpu-usage does not run", usages{}, 0, false},
		{"no line since the death", usages{gauge: &gauge.Gauge{Child: &proc.Child{}}, asOf: died.Add(-1)}, 0, true},
		{"a line since the death", usages{gauge: &gauge.Gauge{Child: &proc.Child{}}, asOf: died}, 0, false},
		{"no line for long", usages{gauge: &gauge.Gauge{Child: &proc.Child{}}, asOf: died.Add(-1)}, usageStart, false},
		{"gpu-usage starts", usages{starting: true}, 0, true},
		{"gpu-usage does not start", usages{starting: true}, usageStart, false},
		{"gpu-usage was started late", usages{starting: true, started: died.Add(time.Second)}, usageStart, true},
	} {
		must.Equal(t, one.name, one.u.pending(c, died.Add(one.after)), one.want)
	}
}

// A client that has ended may get a successor, which is as large as the largest client. So a GPU is short of memory if
// the successors do not fit, for some time after the end.
func TestSuccessorsAreExpected(t *testing.T) {
	now := time.Now()
	usage := gauge.Usage{Known: true, TotalMiB: 1000, FreeMiB: 150, Clients: map[int]int{1: 100, 2: 100}}
	g := &Guard{living: map[int]*client{1: clientOf(1, 1), 2: clientOf(2, 1), 3: clientOf(3, 1)}}
	g.usage.gpus = []gauge.Usage{usage, usage}
	ended := g.living[3]
	delete(g.living, 3)
	if g.noteEnd(ended, now); g.counted(now).demandOf(0).successors != 100 || g.demandOf(1).successors != 0 {
		t.Errorf("%+v", g.counted(now).demandOf(0))
	}
	if _, short := judge(usage, g.counted(now).demandOf(0)); short {
		t.Error("one successor fits, and the GPU is short")
	}
	delete(g.living, 2)
	g.noteEnd(clientOf(2, 1), now)
	if _, short := judge(usage, g.counted(now).demandOf(0)); !short {
		t.Error("two successors do not fit, and the GPU is not short")
	}
	if d := g.counted(now.Add(growing)).demandOf(0); d.successors != 0 {
		t.Errorf("after %v: %+v", growing, d)
	}
	fork := clientOf(4, 1)
	fork.files[0].owner.PID = 1
	g.ends = nil
	if g.noteEnd(fork, now); len(g.ends) > 0 {
		t.Error("the end of a fork counts")
	}
}

// Only an end that is known to be in order is in order.
func TestAnEndThatIsNotKnown(t *testing.T) {
	for _, c := range []struct {
		s    exitStatus
		want bool
	}{
		{exitStatus{0, true}, true}, {exitStatus{0, false}, false}, {exitStatus{9, true}, false},
		{exitStatus{1 << 8, true}, false}, {exitStatus{0x8b, true}, false},
	} {
		must.Equal(t, fmt.Sprintf("%+v: in order", c.s), c.s.inOrder(), c.want)
	}
}

// How a client has ended is read while its pid is known. On an older kernel, a status of 0 counts a moment later.
func TestHowAClientEnded(t *testing.T) {
	for _, c := range []struct {
		end  string
		want string
		well bool
	}{{"exit 0", "status 0", true}, {"exit 3", "status 3", false}, {"kill -9 $$", "signal 9", false}} {
		for _, older := range []bool{false, true} {
			r := stillGuard(t, time.Minute)
			if r.exits.whole = true; older {
				r.exits = *olderExits(t)
			}
			child := r.child(opens + waits + c.end)
			r.scanOne(child.Process.Pid)
			r.exits.follow(r.living, nil)
			pid := child.Process.Pid
			child.enter()
			must.OK(t, wait.Readable(r.living[pid].pidfd, soon))
			if older {
				r.exits.noted(t, pid, c.want)
			}
			died := time.Now()
			r.clientDied(pid, died)
			if older {
				r.learnEnds(died.Add(settleTime))
			}
			if d := r.dead[0]; len(r.dead) != 1 || d.exit.String() != c.want || d.inOrder != c.well {
				t.Errorf("%s, older %v: %q, in order %v", c.end, older, d.exit, d.inOrder)
			}
		}
	}
}

// The room of a GPU is published while a dead client takes it that others need, while its use is not known, and until
// the files are closed.
func TestTheRoomThatIsPublished(t *testing.T) {
	now := time.Now()
	short := func(gpus uint64) *client {
		c := clientOf(1, gpus)
		c.died, c.hostShort = now.Add(-time.Second), true
		return c
	}
	closing := func(gpus uint64, roomy bool) *client {
		c := clientOf(2, gpus)
		c.died, c.wasRoomy = now.Add(-3*time.Second), roomy
		return c
	}
	const hold = 10 * time.Second
	full := func(minor, dead int, ago time.Duration) lease.FullGPU {
		return lease.FullGPU{Minor: minor, Dead: dead, Until: now.Add(hold - ago)}
	}
	for _, c := range []struct {
		name    string
		dead    []*client
		closing *client
		pending bool
		want    []lease.FullGPU
	}{
		{"no client is dead", nil, nil, false, nil},
		{"with room", []*client{{gpus: 1, died: now}}, nil, false, nil},
		{"not known yet", []*client{{gpus: 1, died: now}}, nil, true, []lease.FullGPU{full(3, 1, 0)}},
		{"on the second GPU", []*client{short(2)}, nil, false, []lease.FullGPU{full(5, 1, time.Second)}},
		{"on both GPUs", []*client{short(3)}, nil, false, []lease.FullGPU{full(3, 1, time.Second), full(5, 1, time.Second)}},
		{"on any GPU", []*client{short(0)}, nil, false, []lease.FullGPU{full(3, 1, time.Second), full(5, 1, time.Second)}},
		{"its files are being closed", nil, closing(1, false), false, []lease.FullGPU{full(3, 1, 3*time.Second)}},
		{"its files are being closed, and there was room", nil, closing(1, true), false, nil},
		{"the latest time counts", []*client{short(1)}, closing(1, false), false, []lease.FullGPU{full(3, 2, time.Second)}},
	} {
		options := Options{GuardSettings: lease.GuardSettings{Hold: lease.Duration(hold), Clients: 48}, Minors: []int{3, 5}}
		g := &Guard{Options: options, dead: c.dead, closing: map[*client]time.Time{}}
		g.rooms.next = make(chan lease.Room, 1)
		g.rooms.last.GPUs = []lease.FullGPU{{Minor: 99}} // so that each room is published
		if c.closing != nil {
			g.closing[c.closing] = time.Time{}
		}
		if c.pending {
			g.usage.starting = true
		}
		g.countClients(now)
		for _, c := range g.dead {
			g.situation(c, now)
		}
		g.publishRoom()
		if room := <-g.rooms.next; !slices.Equal(room.GPUs, c.want) {
			t.Errorf("%s: %+v", c.name, room.GPUs)
		}
	}
}

// A new rank does not wait for a client whose files are closed.
func TestNoRankWaitsForClosedFiles(t *testing.T) {
	now := time.Now()
	c := clientOf(2, 1)
	c.died = now
	for _, closed := range []time.Time{{}, now} {
		g := &Guard{Options: Options{GuardSettings: lease.GuardSettings{Hold: lease.Duration(time.Minute)}, Minors: []int{3}}, closing: map[*client]time.Time{c: closed}}
		g.rooms.next = make(chan lease.Room, 1)
		g.rooms.last.GPUs = []lease.FullGPU{{Minor: 99}}
		g.publishRoom()
		if room := <-g.rooms.next; (len(room.GPUs) == 0) != (closed == now) {
			t.Errorf("closed %v: %+v", closed, room.GPUs)
		}
	}
}

// A disk that does not answer delays no room but the one that it has, and at the end no rank waits for room.
func TestRoomsOnASlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var saved []lease.Room
		r := rooms{saver: newSaver(func(room lease.Room) {
			time.Sleep(100 * time.Millisecond)
			saved = append(saved, room)
		})}
		full := func(minor int) lease.Room { return lease.Room{GPUs: []lease.FullGPU{{Minor: minor}}} }
		began := time.Now()
		for minor := range 4 {
			r.publish(full(minor))
			r.publish(full(minor))
			if minor == 0 {
				synctest.Wait() // the first is being saved
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("the guard waited %v for a disk", took)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		must.Hold(t, len(saved) == 2 && saved[0].GPUs[0].Minor == 0 && saved[1].GPUs[0].Minor == 3, "saved: %+v", saved)
		if r.end(); len(saved) != 3 || len(saved[2].GPUs) != 0 {
			t.Errorf("at the end: %+v", saved)
		}
	})
}

// The end of a room's last save is awaited for saveWait.
func TestRoomsOnADiskThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan bool)
		r := rooms{saver: newSaver(func(lease.Room) { <-answers })}
		r.publish(lease.Room{GPUs: []lease.FullGPU{{Minor: 1}}})
		began := time.Now()
		if r.end(); time.Since(began) != saveWait {
			t.Errorf("the guard waited %v", time.Since(began))
		}
		close(answers)
	})
}

// The end waits for files that a driver does not close, but not for long.
func TestFilesThatTheDriverDoesNotClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Guard{files: 3, results: make(chan func(time.Time))}
		began := time.Now()
		if g.releaseAll(); time.Since(began) != endWait {
			t.Errorf("waited %v", time.Since(began))
		}
	})
}

// At the end, the files of the living and of the dead are closed.
func TestAllFilesAreClosedAtTheEnd(t *testing.T) {
	r := stillGuard(t, time.Minute)
	dead, living := r.child(opens+waits), r.child(opens+waits)
	r.scanOne(dead.Process.Pid)
	r.scanOne(living.Process.Pid)
	dead.kill()
	r.clientDied(dead.Process.Pid, time.Now())
	if files := testproc.OpenBelow(r.folder); len(files) != 6 {
		t.Fatalf("held: %q", files)
	}
	r.releaseAll()
	if files := testproc.OpenBelow(r.folder); len(files) > 0 || r.files != 0 {
		t.Errorf("open after the end: %q", files)
	}
}

// A guard without a lease ends.
//
// Contract: G1
func TestAGuardWithoutALeaseEnds(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.gone = true
	ended := make(chan struct{})
	go func() { r.Run(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(soon):
		t.Error("the guard does not end")
		r.Stop()
		<-ended
	}
}

// After a scan, the guard rests twice as long as the scan used the processor.
func TestAScanThatTakesLong(t *testing.T) {
	const work = 50 * time.Millisecond
	r := stillGuard(t, time.Minute)
	r.scans.nextFull = time.Now().Add(time.Hour)
	r.Daemons = func() []proc.Process { // called in each scan for each new process
		for before := computed(unix.RUSAGE_SELF); computed(unix.RUSAGE_SELF)-before < work; {
			continue
		}
		return nil
	}
	r.child(opens + waits)
	r.scan(time.Now())
	if rest := time.Until(r.scans.rested); rest < restScans*work-10*time.Millisecond || r.scans.next.Before(r.scans.rested) {
		t.Errorf("after a scan of %v or more, a rest of %v; the next scan is %v later", work, rest, r.scans.next.Sub(r.scans.rested))
	}
}

// A process in the control group of another job, or of another user, is no client of this job.
//
// Contract: G2, G3
func TestWhoIsAdmitted(t *testing.T) {
	for _, c := range []struct {
		name, groups string
		uid          int
		want         bool
	}{
		{"in no job's group", "0::/user.slice\n", 0, true},
		{"in this job's group", "0::/slurm/job_7/step_0/user/task_0\n", 0, true},
		{"in another job's group", "0::/slurm/job_8/step_0/user/task_0\n", 0, false},
		{"in the group of a job that shares the daemon", "0::/slurm/job_9/step_0/user/task_0\n", 0, true},
		{"in the groups of both jobs", "1:freezer:/slurm/job_7/step_0\n4:memory:/slurm/job_8/step_0\n", 0, false},
		{"in this job's group, by SLUID", "0::/system.slice/slurmstepd.scope/sB9NM830BDDR00/step_0/user/task_0\n", 0, true},
		{"in another job's group, by SLUID", "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n", 0, false},
		{"in the group of a job that shares the daemon, by SLUID", "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV509/step_0\n", 0, true},
		{"of another user", "0::/slurm/job_7/step_0\n", 1, false},
	} {
		g := Guard{Options: Options{Job: 7, SLUID: "sB9NM830BDDR00", UID: 2001, Record: &notes{members: []string{"9", "sEKNKTV3WPV509"}}}}
		status := proc.Status{UIDs: [4]uint32{0, uint32(2001 + c.uid), 0, 0}}
		must.Equal(t, c.name, g.ours(status, witness.JobsOf(proc.ParseGroups(c.groups))), c.want)
	}
}

// A child of one of the job's daemons is a server.
//
// Contract: G2
func TestAServerIsNotAdmitted(t *testing.T) {
	r := stillGuard(t, time.Minute)
	self := must.Get(proc.Current())(t)
	child := r.child(waits)
	r.Daemons = func() []proc.Process { return []proc.Process{self} }
	if c, err := r.admit(child.Process.Pid); err == nil {
		t.Errorf("admitted: %+v", c)
	}
}

// A process that ended while it was scanned is not admitted, because another process may have its pid.
//
// Contract: I2
func TestAProcessThatEndsIsNotAdmitted(t *testing.T) {
	r := stillGuard(t, time.Minute)
	child := r.child(waits)
	_ = child.Process.Kill()
	pidfd := must.Get(unix.PidfdOpen(child.Process.Pid, 0))(t)
	defer unix.Close(pidfd)
	if err := wait.Readable(pidfd, soon); err != nil { // it is a zombie, which has all that a scan reads
		t.Fatal(err)
	}
	if c, err := r.admit(child.Process.Pid); err == nil {
		t.Errorf("admitted: %+v", c)
	}
}

// Root's processes are no candidates, if the job's user is not root.
func TestRootsProcessesAreNoCandidates(t *testing.T) {
	must.Root(t)
	r := stillGuard(t, time.Minute)
	child := r.child(opens + waits)
	for uid, want := range map[uint32]bool{0: true, 2001: false} {
		r.UID, r.ofRoot = uid, nil
		for _, full := range []bool{true, false} {
			pids, err := r.candidates(full)
			if err != nil || slices.Contains(pids, child.Process.Pid) != want {
				t.Errorf("the user is %d, full %v: a candidate %v, %v", uid, full, !want, err)
			}
		}
	}
}

// The kernel's threads are read once, and all other processes of root at each full scan: one may become the user's.
func TestTheKernelsThreadsAreReadOnce(t *testing.T) {
	must.Root(t)
	r := stillGuard(t, time.Minute)
	child := r.child(opens + waits)
	r.UID = 2001
	must.Get(r.candidates(true))(t)
	threads := 0
	for pid, thread := range r.ofRoot {
		switch line, err := os.ReadFile(proc.Folder(pid) + "/cmdline"); {
		case thread && err == nil && len(line) > 0:
			t.Errorf("%q is taken for a thread of the kernel", line)
		case thread:
			threads++
		}
	}
	must.Hold(t, !r.ofRoot[child.Process.Pid] && !r.ofRoot[os.Getpid()], "a process is taken for a thread of the kernel")
	if name, _ := proc.Name(kthreadd); name == "kthreadd" && threads == 0 {
		t.Errorf("none of %d processes of root is a thread of the kernel", len(r.ofRoot))
	}
}

// A client shares four pipes with its server. A process without them is reported after two checks, and never ended.
//
// Contract: K4
func TestAProcessOutsideOfMPS(t *testing.T) {
	for _, c := range []struct {
		pipes int
		want  bool
	}{{0, true}, {clientPipes - 1, true}, {clientPipes, false}} {
		r := stillGuard(t, time.Minute)
		cmd := exec.Command("/bin/sleep", "60")
		servers := map[string]bool{}
		for range clientPipes {
			reads, writes, err := os.Pipe()
			must.OK(t, err)
			defer reads.Close()
			defer writes.Close()
			link := must.Get(os.Readlink("/proc/self/fd/" + strconv.Itoa(int(reads.Fd()))))(t)
			servers[link] = true
			if cmd.ExtraFiles = append(cmd.ExtraFiles, reads); len(cmd.ExtraFiles) > c.pipes {
				cmd.ExtraFiles = cmd.ExtraFiles[:c.pipes]
			}
		}
		must.OK(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		now := time.Now()
		is := clientOf(cmd.Process.Pid, 1)
		r.answered(func() { r.verifyOne(is, servers, now) })
		if again := !is.verify.IsZero(); again != c.want || again && is.verify.Sub(now) != verifyAgain {
			t.Fatalf("%d pipes: another check at %v", c.pipes, is.verify)
		}
		if !c.want {
			continue
		}
		r.answered(func() { r.verifyOne(is, servers, now.Add(verifyAgain)) })
		r.awaitResults(soon, func() bool { return r.Guard.state.OutsideSeen > 0 })
		state := r.Guard.state
		must.Hold(t, state.OutsideSeen == 1 && len(state.Outside) == 1 && state.Outside[0].Proc.PID == cmd.Process.Pid,
			"%d pipes: %+v", c.pipes, state)
	}
}

// The list of processes outside of MPS is bounded, and their number is not.
func TestTheListOfProcessesOutsideIsBounded(t *testing.T) {
	r := stillGuard(t, time.Minute)
	for range maxOutside + 5 {
		r.noteOutside(lease.Outside{}, "")
	}
	if r.Guard.state.OutsideSeen != maxOutside+5 || len(r.Guard.state.Outside) != maxOutside {
		t.Errorf("%d seen, %d listed", r.Guard.state.OutsideSeen, len(r.Guard.state.Outside))
	}
}

// The driver may list a process of a container by another pid. So a pid that is not listed does not prove that the
// process has no context, and its memory is assumed to be that of the largest client.
func TestAClientInAPidNamespace(t *testing.T) {
	now := time.Now()
	u := usages{gauge: &gauge.Gauge{Child: &proc.Child{}}, asOf: now, idle: make([]span, 1), busy: make([]uint64, 1), shared: make([]sharing, 1),
		gpus: []gauge.Usage{{Known: true, TotalMiB: 1000, FreeMiB: 900, Clients: map[int]int{1: 100}}}}
	for _, in := range []bool{false, true} {
		c := clientOf(7, 1)
		c.died, c.namespaced = now, in
		g := &Guard{usage: u, dead: []*client{c}}
		var s situation
		if g.counted(now).addUsage(c, &s, now); s.noContext == in {
			t.Errorf("in a namespace %v: %+v", in, s)
		}
		if want := map[bool]int{false: 0, true: 100}[in]; g.demandOf(0).inFlight != want {
			t.Errorf("in a namespace %v: %+v", in, g.demandOf(0))
		}
	}
}

// nvidia-smi gives the sum of the memory only, and as it was up to 0.1 s ago. A client that has just started may not be
// in it.
func TestMemoryByClientIsUnknown(t *testing.T) {
	now := time.Now()
	for _, one := range []struct {
		name            string
		free            int
		settled, starts int // living clients
		dead            int
		roomy, short    bool
	}{
		{"one of two ends when the other starts", 540, 0, 1, 1, false, true},
		{"the last of two ends", 540, 0, 0, 1, true, false},
		{"a small one of a few ends", 600, 3, 0, 1, true, false},
		{"one of eight ends", 200, 7, 0, 1, false, false},
		{"its successor starts, and may be large", 200, 7, 1, 1, false, true},
		{"a successor starts, and fits", 600, 3, 1, 1, true, false},
	} {
		g := &Guard{living: map[int]*client{}}
		add := func(opened time.Time) *client {
			c := clientOf(100+len(g.living)+len(g.dead), 1)
			c.opened = opened
			return c
		}
		for range one.settled {
			c := add(now.Add(-soonGrown))
			g.living[c.proc.PID] = c
		}
		for range one.starts {
			c := add(now)
			g.living[c.proc.PID] = c
		}
		for range one.dead {
			g.dead = append(g.dead, add(now.Add(-soonGrown)))
		}
		usage := gauge.Usage{Known: true, ContextsUnknown: true, TotalMiB: 1000, FreeMiB: one.free}
		g.usage.gpus = []gauge.Usage{usage}
		if roomy, short := judge(usage, g.counted(now).demandOf(0)); roomy != one.roomy || short != one.short {
			t.Errorf("%s: roomy %v, short %v: %+v", one.name, roomy, short, g.counted(now).demandOf(0))
		}
	}
}

// A driver that gives memory and no samples never says that a GPU is idle. After a second, the use of the GPU counts as
// unknown.
func TestADriverWithoutSamples(t *testing.T) {
	died := time.Now()
	for _, c := range []struct {
		busy  uint64
		after time.Duration
		known bool
	}{{0, 0, true}, {0, usageStart, false}, {1, usageStart, true}} {
		now := died.Add(c.after)
		g := &Guard{usage: usages{gauge: &gauge.Gauge{Child: &proc.Child{}}, asOf: now, idle: make([]span, 1), busy: []uint64{c.busy}, shared: make([]sharing, 1), gpus: []gauge.Usage{{Known: true}}}}
		var s situation
		if g.counted(now).addUsage(&client{died: died, gpus: 1}, &s, now); s.gpuKnown != c.known {
			t.Errorf("%+v: %+v", c, s)
		}
	}
}
