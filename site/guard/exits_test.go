// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/pause"
	"github.com/slurm-mps/slurm-mps/site/guard/take"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/firstthread"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"github.com/slurm-mps/slurm-mps/site/wait"
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
	must.OK(t, err)
	pidfd = must.Get(unix.PidfdOpen(cmd.Process.Pid, 0))(t)
	t.Cleanup(func() { unix.Close(pidfd) })
	before(cmd.Process.Pid)
	in.Close()
	must.OK(t, wait.Readable(pidfd, soon))
	return pidfd, cmd.Process.Pid, func() { _ = cmd.Wait() }
}

func (s exitStatus) check(t *testing.T, source, want string, order bool) {
	t.Helper()
	if s.String() != want || s.inOrder() != order {
		t.Errorf("%s: %q, in order %v; want %q, %v", source, s, s.inOrder(), want, order)
	}
}

// olderExits are those of a kernel before 6.15. The test is skipped where the connector cannot be opened.
func olderExits(t *testing.T) *exits {
	t.Helper()
	fd, err := openConnector()
	if err != nil {
		t.Skip(err)
	}
	e := &exits{connector: fd, seen: map[int]exitStatus{}}
	t.Cleanup(e.close)
	return e
}

// noted waits until the connector has told of an end as wanted. The kernel tells of a process's end before that.
func (e *exits) noted(t *testing.T, pid int, want string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if e.drain(); e.seen[pid].String() == want {
			return
		}
		if time.Since(began) > soon {
			t.Errorf("the connector: %q, want %q", e.seen[pid], want)
			return
		}
	}
}

// Each source knows how a process has ended.
func TestHowAProcessEnded(t *testing.T) {
	k := newKernel(Options{Devices: t.TempDir()})
	e := olderExits(t)
	for _, end := range ends {
		pidfd, pid, reap := ended(t, end.script, func(pid int) { e.follow(map[int]*client{pid: {}}, nil) })
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
		e.noted(t, pid, end.want)
		e.seen[pid].check(t, "the connector", end.want, end.order)
	}
}

// The first thread ends with status 0 while the guard follows the process. Each source reports the status of the
// process's end.
func TestTheEndOfAProcessWithoutItsFirstThread(t *testing.T) {
	library := must.Get(firstthread.Build(t.TempDir()))(t)
	k := newKernel(Options{Devices: t.TempDir()})
	for _, end := range ends {
		e := olderExits(t)
		script := "export LD_PRELOAD=" + library + "; exec /bin/sh -c '" + end.script + "'"
		pidfd, pid, reap := ended(t, script, func(pid int) { e.follow(map[int]*client{pid: {}}, nil) })
		newer := exits{connector: -1, whole: true}
		s := newer.of(k, pidfd, pid)
		for late := time.Now().Add(soon); !s.known && time.Now().Before(late); s = newer.of(k, pidfd, pid) {
			k.asks.begin() // on a busy machine an answer can be late
		}
		s.check(t, "a zombie of a newer kernel", end.want, end.order)
		e.noted(t, pid, end.want)
		e.of(k, pidfd, pid).check(t, "a zombie of an older kernel", end.want, end.order)
		reap()
		e.seen[pid].check(t, "the connector", end.want, end.order)
		newer.of(k, pidfd, pid).check(t, "a pidfd", end.want, end.order)
	}
}

// A zombie's status of 0 may be that of its first thread before Linux 6.15. Without the connector, as for a guard
// without root, it is not known.
func TestAZombieOnAnOlderKernel(t *testing.T) {
	k := newKernel(Options{Devices: t.TempDir()})
	for _, end := range ends {
		pidfd, pid, reap := ended(t, end.script, func(int) {})
		want := end.want
		if end.order {
			want = ""
		}
		e := exits{connector: -1}
		e.of(k, pidfd, pid).check(t, end.script, want, false)
		reap()
	}
}

// threads builds testdata/threads.c and starts it. The child waits for a line.
func (r *testGuard) threads(arguments string) *child {
	r.t.Helper()
	path := filepath.Join(r.t.TempDir(), "threads")
	gcc := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", path, "testdata/threads.c")
	if out, err := gcc.CombinedOutput(); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return r.child(opens + "exec " + path + " " + arguments)
}

// The connector reports the ends of the processes that are followed, however many others end, and however many of their
// own threads end in order. Its socket does not fill.
func TestOthersDoNotFillTheConnector(t *testing.T) {
	r := stillGuard(t, 0)
	e := olderExits(t)
	many := r.threads("3000 0")
	_, pid, reap := ended(t, "exit 4", func(pid int) {
		e.follow(map[int]*client{pid: {}, many.Process.Pid: {}}, nil)
		if out, err := exec.Command("/bin/sh", "-c", "for i in $(seq 3000); do (exit 1); done; true").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		many.enter()
		must.OK(t, many.Wait())
	})
	reap()
	e.noted(t, pid, "status 4")
	e.noted(t, many.Process.Pid, "status 0")
	must.Equal(t, fmt.Sprintf("seen: %v", e.seen), len(e.seen), 2)
	e.follow(nil, nil)
	if len(e.seen) > 0 {
		t.Errorf("a process that is no client any more is known: %v", e.seen)
	}
}

// Threads that end with another status fill the socket, and the kernel drops messages. Then no status of 0 is known, of
// any process that was followed.
func TestAFullConnector(t *testing.T) {
	r := stillGuard(t, 0)
	e := olderExits(t)
	many := r.threads("3000 1")
	order := r.child(waits)
	e.follow(map[int]*client{many.Process.Pid: {}, order.Process.Pid: {}}, nil)
	order.enter()
	_ = order.Wait()
	e.noted(t, order.Process.Pid, "status 0")
	many.enter()
	_ = many.Wait()
	e.drain()
	if e.seen[order.Process.Pid].known || e.seen[many.Process.Pid].inOrder() {
		t.Errorf("seen: %v", e.seen)
	}
}

// An exec by another thread ends the first thread, and the process lives on.
func TestAnExecByAnotherThread(t *testing.T) {
	r := stillGuard(t, 0)
	e := olderExits(t)
	c := r.threads("1 exec")
	e.follow(map[int]*client{c.Process.Pid: {}}, nil)
	c.enter()
	c.says("again")
	c.kill()
	e.noted(t, c.Process.Pid, "signal 9")
}

// Only messages of the kernel count. Root can send one from another socket.
func TestAForgedMessage(t *testing.T) {
	e := olderExits(t)
	e.follow(map[int]*client{os.Getpid(): {}}, nil)
	fd := must.Get(unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_CONNECTOR))(t)
	defer unix.Close(fd)
	name := must.Get(unix.Getsockname(e.connector))(t)
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: name.(*unix.SockaddrNetlink).Pid}
	m := make([]byte, messageSize)
	binary.NativeEndian.PutUint32(m, messageSize)
	binary.NativeEndian.PutUint32(m[eventOffset:], procExit)
	for _, at := range []int{pidOffset, tgidOffset} {
		binary.NativeEndian.PutUint32(m[at:], uint32(os.Getpid()))
	}
	must.OK(t, unix.Sendto(fd, m, 0, to))
	var peeked [messageSize]byte
	n, _, err := unix.Recvfrom(e.connector, peeked[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	must.Have(t, err == nil && n == messageSize, "the message has not come: %d, %v", n, err)
	if e.drain(); len(e.seen) > 0 {
		t.Errorf("seen: %v", e.seen)
	}
}

// A status of 0 is provisional on an older kernel: the message of the last thread may come after the end. The client
// counts as ended in order when it has not come in time.
func TestAMessageThatComesLate(t *testing.T) {
	for _, late := range []bool{false, true} {
		r := stillGuard(t, 0)
		r.exits = *olderExits(t)
		c := r.child(opens + "echo ready; read x")
		pid := c.Process.Pid
		r.scanOne(pid)
		r.exits.follow(r.living, nil)
		c.enter()
		_ = c.Wait()
		r.exits.noted(t, pid, "status 0")
		died := time.Now()
		if r.clientDied(pid, died); len(r.dead) != 1 || r.dead[0].inOrder || r.dead[0].exit.String() != "status 0" {
			t.Fatalf("at its death: %+v", r.dead[0])
		}
		if late {
			r.exits.seen[pid] = exitStatus{9, true}
		}
		r.exits.follow(nil, r.dead)
		if r.learnEnds(died.Add(settleTime - 1)); r.dead[0].inOrder {
			t.Error("in order before the time is over")
		}
		r.learnEnds(died.Add(settleTime))
		want := "status 0"
		if late {
			want = "signal 9"
		}
		if d := r.dead[0]; d.inOrder == late || d.exit.String() != want || d.unsettled {
			t.Errorf("late %v: %q, in order %v", late, d.exit, d.inOrder)
		}
		r.exits.follow(nil, r.dead)
		must.Hold(t, len(r.exits.seen) <= 0, "a settled client is followed on")
	}
}

func TestAtLeast(t *testing.T) {
	for release, want := range map[string]bool{"6.15.0": true, "6.18.44-fc": true, "7.0": true,
		"6.8.0-40-generic": false, "4.18.0-553.el8_10.x86_64": false, "": false} {
		must.Equal(t, fmt.Sprintf("%q: %v", release, !want), atLeast(release, 6, 15), want)
	}
}

// A wait without an end fails, and does not hang.
func TestReadableHasADeadline(t *testing.T) {
	fd := must.Get(unix.Eventfd(0, unix.EFD_CLOEXEC))(t)
	defer unix.Close(fd)
	if err := wait.Readable(fd, time.Millisecond); err == nil {
		t.Error("an event that never came was reported")
	}
}

// withoutFirst runs a script in a shell whose first thread has ended.
func (r *testGuard) withoutFirst(script string) *child {
	r.t.Helper()
	library := must.Get(firstthread.Build(r.t.TempDir()))(r.t)
	c := r.child("export LD_PRELOAD=" + library + "; exec /bin/sh -c '" + script + "'")
	if stat, err := proc.ReadStat(c.Process.Pid); err != nil || stat.State != 'Z' || !stat.Running() {
		r.t.Fatalf("the first thread has not ended: %+v, %v", stat, err)
	}
	return c
}

// A client whose first thread ended before it opened the driver's files is held like any other, also the file that it
// opens in the place of a closed one.
func TestAClientWithoutItsFirstThread(t *testing.T) {
	r := stillGuard(t, 0)
	c := r.withoutFirst(opens + waits + "exec 7<&- 7<nvidia-uvm; echo again; read x; exec 6<&-; echo closed; read x")
	pid := c.Process.Pid
	r.scanOne(pid)
	held := r.living[pid]
	if held == nil || len(held.files) != 3 || held.gpus != 1 || !held.seen || held.resident < 100<<10 {
		t.Fatalf("held: %+v, %+v", held, r.Guard.state)
	}
	if program, err := r.kernel.program(pid); err != nil || program == (take.Identity{}) {
		t.Errorf("its program: %+v, %v", program, err)
	}
	if pipes, err := r.kernel.pipesOf(pid, maxDescriptors); err != nil || len(pipes) < 2 { // stdin and stdout
		t.Errorf("its pipes: %v, %v", pipes, err)
	}
	c.enter()
	c.says("again")
	r.scanOne(pid)
	if len(held.files) != 3 || len(r.dead) != 1 || !r.dead[0].lives || len(r.dead[0].files) != 1 {
		t.Fatalf("after a file was replaced: %+v, dead %+v", held, r.dead)
	}
	c.enter()
	c.says("closed")
	r.scanOne(pid)
	if len(held.files) != 2 || len(r.dead) != 2 {
		t.Fatalf("after a file was closed: %+v, dead %+v", held, r.dead)
	}
	c.kill()
	if r.clientDied(pid, held.opened); len(r.dead) != 3 || r.dead[2].inOrder || len(r.dead[2].files) != 2 {
		t.Errorf("after its death: %+v", r.dead)
	}
}

// A fork without its first thread shares the files of its parent, and is no client of its own.
func TestAForkWithoutItsFirstThread(t *testing.T) {
	r := stillGuard(t, 0)
	c := r.withoutFirst(opens + "sleep 60 & " + waits)
	children := proc.Children(c.Process.Pid)
	must.Have(t, len(children) == 1, "children: %v", children)
	t.Cleanup(func() { _ = unix.Kill(children[0], unix.SIGKILL) })
	for stat, err := proc.ReadStat(children[0]); stat.State != 'Z'; stat, err = proc.ReadStat(children[0]) {
		must.OK(t, err)
	}
	r.scanOne(c.Process.Pid)
	r.scanOne(children[0])
	if fork := r.living[children[0]]; fork == nil || !fork.inherits() || r.files != 3 || r.Guard.state.ClientsSeen != 1 {
		t.Errorf("the fork: %+v, %d files, %+v", fork, r.files, r.Guard.state)
	}
}

// A neighbour without its first thread is paused, and goes on after the pause.
func TestAPauseOfAProcessWithoutItsFirstThread(t *testing.T) {
	r := stillGuard(t, 0)
	c := r.withoutFirst(waits + "echo goes on; read x")
	stat := must.Get(proc.ReadStat(c.Process.Pid))(t)
	p := pause.New(1, func() {})
	go p.Run(pauserLine, 10*time.Second)
	p.Targets <- pause.Target{Process: stat.Process, UID: uint32(os.Geteuid())}
	must.Note(t, <-p.Answers)
	if status, err := proc.ReadStatus(c.Process.Pid); err != nil || !status.Stopped() || status.Tracer == 0 {
		t.Errorf("during the pause: %+v, %v", status, err)
	}
	close(p.Over)
	c.enter()
	c.says("goes on")
}

// A client that has files before its first thread ends stays a client with these files.
func TestAFirstThreadThatEndsLater(t *testing.T) {
	r := stillGuard(t, 0)
	library := must.Get(firstthread.Build(t.TempDir()))(t)
	c := r.child(opens + waits + "export LD_PRELOAD=" + library + "; exec /bin/sh -c \"exec 9<nvidia-uvm; " + waits + "\"")
	r.scanOne(c.Process.Pid)
	c.enter()
	c.says("ready")
	r.scanOne(c.Process.Pid)
	if held := r.living[c.Process.Pid]; held == nil || len(held.files) != 4 || len(r.dead) > 0 {
		t.Errorf("held: %+v, dead %+v", held, r.dead)
	}
}

// Before Linux 6.9 no file of such a process can be duplicated. It is counted once as not guarded, with the cause, and
// not asked again. A client that had files before is a client with these.
func TestAClientWithoutItsFirstThreadOnAnOlderKernel(t *testing.T) {
	r := stillGuard(t, 0)
	tries := 0
	r.kernel.threadPidfd = func(int) (int, error) { tries++; return -1, unix.EINVAL }
	c := r.withoutFirst(opens + waits)
	for range 3 {
		r.scanOne(c.Process.Pid)
	}
	state := r.Guard.state
	want := []lease.Unguarded{{Cause: errThread.Error(), Processes: 1}}
	must.Hold(t, len(r.living) <= 0 && state.Unheld == 0 && slices.Equal(state.Unguarded, want) && tries == 1,
		"%+v, %d tries", state, tries)
	c.kill()
	if files := testproc.OpenBelow(r.folder); len(files) > 0 {
		t.Errorf("open: %q", files)
	}
}

// A zombie is neither a client nor a process that is not guarded, also for a guard that may not read the folder of its
// files.
func TestAZombieIsNotUnguarded(t *testing.T) {
	r := stillGuard(t, 0)
	c := r.child(opens + waits)
	_ = c.Process.Kill()
	for stat, err := proc.ReadStat(c.Process.Pid); err == nil && stat.Running(); {
		stat, err = proc.ReadStat(c.Process.Pid)
	}
	_, err := r.kernel.openedBy(c.Process.Pid, maxDescriptors)
	r.noteUnguarded(c.Process.Pid, err, true)
	if err == nil || len(r.Guard.state.Unguarded) > 0 {
		t.Errorf("%v, %+v", err, r.Guard.state)
	}
}

// A number that is another process's thread by now is not taken for the client's thread.
func TestAThreadOfAnotherProcess(t *testing.T) {
	r := stillGuard(t, 0)
	a, b := r.withoutFirst(opens+waits), r.withoutFirst(opens+waits)
	before, _ := filepath.Glob("/proc/self/fd/*")
	c := &client{proc: proc.Process{PID: a.Process.Pid}, pidfd: -1, thread: proc.Thread(b.Process.Pid)}
	if fd, err := r.kernel.filesOf(c); err != unix.ESRCH {
		t.Errorf("%d, %v", fd, err)
	}
	if after, _ := filepath.Glob("/proc/self/fd/*"); len(after) != len(before) {
		t.Errorf("open before %q, after %q", before, after)
	}
}
