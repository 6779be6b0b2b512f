// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// soon bounds what comes at once on a machine with nothing else to do.
const soon = 10 * time.Second

// devices is a folder with regular files in the place of the driver's.
func devices(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// room is a guard in this process that guards children of the test, and what it reports.
type room struct {
	*Guard
	t      *testing.T
	folder string // of the devices
	mutex  sync.Mutex
	last   lease.GuardState
}

// newRoom makes a guard of GPUs 0 and 1 that is not running.
func newRoom(t *testing.T, hold time.Duration) *room {
	t.Helper()
	r := &room{t: t, folder: devices(t)}
	g, err := New(Options{
		Job: 7, UID: uint32(os.Geteuid()), Hold: hold, Devices: r.folder, Minors: []int{0, 1}, Taker: takerLine,
		Daemons: func() []site.Process { return nil }, Leased: func() bool { return true }, Log: zerolog.Nop(),
		Save: func(s lease.GuardState) {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			s.Released = maps.Clone(s.Released)
			r.last = s
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Guard = g
	return r
}

// runs lets the guard run until the test ends.
func (r *room) runs() {
	r.t.Helper()
	ended := make(chan struct{})
	go func() { r.Run(); close(ended) }()
	r.t.Cleanup(func() {
		r.Stop()
		<-ended
		if left := own(r.folder); len(left) > 0 {
			r.t.Errorf("open after the end: %q", left)
		}
	})
}

// still closes what a guard that never runs has.
func (r *room) still() {
	r.t.Cleanup(func() {
		r.releaseAll()
		r.events.close()
		r.kernel.close()
	})
}

// own are this process's open files below a folder.
func own(folder string) (files []string) {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, folder+"/") {
			files = append(files, filepath.Base(target))
		}
	}
	return files
}

// becomes waits until so many files are open here, and stay so: one that is given another number is open twice for a moment.
func (r *room) becomes(files int, within time.Duration) {
	r.t.Helper()
	const looks = 3
	for began, same := time.Now(), 0; same < looks; time.Sleep(time.Millisecond) {
		if same++; len(own(r.folder)) != files {
			same = 0
		}
		if same == 0 && time.Since(began) > within {
			r.t.Fatalf("after %v it holds %q, want %d files", within, own(r.folder), files)
		}
	}
}

// state waits until what the guard reports is as it is to be.
func (r *room) reports(what string, is func(lease.GuardState) bool) {
	r.t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		r.mutex.Lock()
		s := r.last
		r.mutex.Unlock()
		if is(s) {
			return
		}
		if time.Since(began) > soon {
			r.t.Fatalf("%s: %+v", what, s)
		}
	}
}

// opens has the files open that a client has: descriptors 5 to 8.
const opens = "exec 5<nvidiactl 6<nvidia-uvm 7<nvidia-uvm 8<nvidia0; "

// child runs a shell script in the folder of the devices, which prints a line when it is ready. Enter goes to its stdin.
func (r *room) child(script string) *child {
	r.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = r.folder
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		r.t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	c := &child{cmd, r.t, bufio.NewReader(out), func() { fmt.Fprintln(in) }}
	r.t.Cleanup(c.kill)
	c.says("ready")
	return c
}

type child struct {
	*exec.Cmd
	t     *testing.T
	lines *bufio.Reader
	enter func()
}

func (c *child) says(want string) string {
	c.t.Helper()
	line, err := c.lines.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, want) {
		c.t.Fatalf("child %q prints %q, %v", c.Args, line, err)
	}
	return strings.TrimSpace(line)
}

func (c *child) kill() {
	_ = c.Process.Kill()
	_ = c.Wait()
}

const waits = "echo ready; read x; "

// What a client opens is held at once, and closed when no other client is left.
func TestTheFilesOfAClientAreHeld(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.runs()
	c := r.child(opens + waits)
	r.becomes(3, soon)
	c.kill()
	r.becomes(0, soon)
	r.reports("released", func(s lease.GuardState) bool { return s.Seen == 1 && s.Released[noNeighbour] == 1 && s.Clients == 0 })
}

// The memory driver's device file comes with the node's first server, whose log has a line then: its clients are found at once.
func TestADeviceThatComesLate(t *testing.T) {
	r := newRoom(t, time.Minute)
	logs := t.TempDir()
	r.Logs = []string{logs}
	device := filepath.Join(r.folder, "nvidia-uvm")
	if err := os.Remove(device); err != nil {
		t.Fatal(err)
	}
	delete(r.events.watched, device) // as if it had never been there
	r.kernel.findDevices()
	r.watch()
	r.runs()
	time.Sleep(100 * time.Millisecond) // the first look is over
	for _, path := range []string{device, filepath.Join(logs, "server.log")} {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * lookingFor)
	r.child(opens + waits)
	r.becomes(3, rareLook/2)
}

// A disk that does not answer holds up neither the guard nor its end.
func TestAStateThatIsNotSaved(t *testing.T) {
	r := newRoom(t, time.Minute)
	asked, answers := make(chan struct{}), make(chan struct{})
	r.Save = func(lease.GuardState) { asked <- struct{}{}; <-answers }
	ended := make(chan struct{})
	go func() { r.Run(); close(ended) }()
	<-asked
	r.child(opens + waits)
	r.becomes(3, rareLook/2)
	r.Stop()
	select {
	case <-ended:
	case <-time.After(soon):
		t.Error("it does not end")
	}
	go func() { <-asked }() // the last state
	close(answers)
}

// Beside a neighbour they are held for the time that the policy says, and no longer than the neighbour lives.
func TestFilesAreHeldBesideANeighbour(t *testing.T) {
	const hold = 500 * time.Millisecond
	r := newRoom(t, hold)
	r.runs()
	neighbour := r.child(opens + waits)
	r.becomes(3, soon)
	victim := r.child(opens + waits)
	r.becomes(6, soon)
	died := time.Now()
	victim.kill()
	for time.Since(died) < hold-50*time.Millisecond {
		if files := own(r.folder); len(files) != 6 && time.Since(died) < hold {
			t.Fatalf("after %v it holds %q", time.Since(died), files)
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.becomes(3, soon)
	r.reports("released", func(s lease.GuardState) bool { return s.Released[holdOver] == 1 && s.Clients == 1 && s.Peak == 2 })
	neighbour.kill()
	r.becomes(0, soon)
}

// A client of the other GPU is no neighbour.
func TestAClientOfAnotherGPUIsNoNeighbour(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.runs()
	r.child("exec 5<nvidiactl 6<nvidia-uvm 7<nvidia-uvm 8<nvidia1; " + waits)
	victim := r.child(opens + waits)
	r.becomes(6, soon)
	victim.kill()
	r.becomes(3, soon)
	r.reports("released", func(s lease.GuardState) bool { return s.Released[noNeighbour] == 1 })
}

// A fork has the files of its parent: they are held once, as long as one of both lives, and count as one client.
func TestAForkSharesItsParentsFiles(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.runs()
	parent := r.child("sleep 0.2; " + opens + "(exec 0</dev/null; exec sleep 60) & echo ready $!; read x; ")
	r.becomes(3, soon)
	r.reports("both are seen", func(s lease.GuardState) bool { return s.Clients == 1 && s.Seen == 1 && s.Files == 3 })
	parent.kill()
	r.reports("the fork alone is no client", func(s lease.GuardState) bool { return s.Clients == 0 })
	r.becomes(3, 0) // the fork has them
	for pid, c := range forks(r.folder, parent.Process.Pid) {
		t.Logf("fork %d", pid)
		_ = c.Kill()
	}
	r.becomes(0, soon)
}

// forks are the processes that work in a folder, but for one.
func forks(folder string, but int) map[int]*os.Process {
	found := map[int]*os.Process{}
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		var pid int
		if target, err := os.Readlink(link); err != nil || target != folder {
			continue
		}
		if n, _ := fmt.Sscanf(link, "/proc/%d/cwd", &pid); n == 1 && pid != but {
			if p, err := os.FindProcess(pid); err == nil {
				found[pid] = p
			}
		}
	}
	return found
}

// A fork that is found before its parent does not take the parent's place among the neighbours.
func TestAForkThatIsFoundFirst(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.still()
	parent := r.child("sleep 0.2; " + opens + "sleep 60 & echo ready; read x; ")
	for pid, p := range forks(r.folder, parent.Process.Pid) {
		defer func() { _ = p.Kill() }()
		r.looksAt(pid)
	}
	r.looksAt(parent.Process.Pid)
	if c := r.living[parent.Process.Pid]; len(r.living) != 2 || c == nil || c.inherits() || r.files != 3 {
		t.Errorf("%d clients with %d files, parent %+v", len(r.living), r.files, c)
	}
}

// A look may come while a client opens its files. If the client has forked by the next one, and the fork is looked at
// first, then the file that is new is the client's all the same.
func TestAForkThatIsFoundWithANewFile(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.still()
	parent := r.child("sleep 0.2; exec 5<nvidiactl 6<nvidia-uvm 8<nvidia0; echo ready; read x; exec 7<nvidia-uvm; sleep 60 & echo forked; read x; ")
	r.looksAt(parent.Process.Pid)
	parent.enter()
	parent.says("forked")
	for pid, p := range forks(r.folder, parent.Process.Pid) {
		defer func() { _ = p.Kill() }()
		r.looksAt(pid)
	}
	r.looksAt(parent.Process.Pid)
	if r.state.Seen != 1 || r.neighbours() != 1 || r.files != 3 {
		t.Errorf("%d clients seen, %d neighbours with %d files", r.state.Seen, r.neighbours(), r.files)
	}
}

// A process that closes a file and opens it anew, as PyTorch does while it starts, takes one of the GPU's places.
func TestAClientThatOpensAnewTakesOnePlace(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.still()
	c := r.child("exec 5<nvidiactl 6<nvidia-uvm 8<nvidia0; echo ready; read x; exec 6<&-; exec 7<nvidia-uvm; echo again; read x; ")
	r.looksAt(c.Process.Pid)
	c.enter()
	c.says("again")
	r.looksAt(c.Process.Pid)
	living := r.living[c.Process.Pid]
	if len(r.dead) != 1 || r.places(living) != 1 {
		t.Errorf("%d parts of the dead, %d places", len(r.dead), r.places(living))
	}
}

// Where Slurm makes no control groups, a client of another job of the same user is known by its environment. While it starts
// it has this job's GPU open as well.
func TestAClientOfAnotherJobOfTheUser(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.Pipes = []string{"/ours"}
	r.runs()
	start := func(variables string) { r.child("exec env " + variables + " sh -c '" + opens + waits + "'") }
	start("SLURM_JOB_ID=7 CUDA_MPS_PIPE_DIRECTORY=/ours")
	start("SLURM_JOB_ID=7 CUDA_MPS_PIPE_DIRECTORY=/other") // that daemon may not be there
	start("SLURM_JOB_ID=8 CUDA_MPS_PIPE_DIRECTORY=/ours")
	start("CUDA_MPS_PIPE_DIRECTORY=/other") // of no job that we know
	r.reports("clients of this job", func(s lease.GuardState) bool { return s.Clients == 4 && s.Seen == 4 })
	start("SLURM_JOB_ID=8 CUDA_MPS_PIPE_DIRECTORY=/other")
	r.reports("the fifth comes", func(s lease.GuardState) bool { return s.Peak == 5 })
	r.reports("and is not ours", func(s lease.GuardState) bool { return s.Clients == 4 && s.Seen == 4 && s.Files == 12 })
}

// looksAt looks at one process as a look does.
func (r *room) looksAt(pid int) {
	r.t.Helper()
	opened, err := r.kernel.openedBy(pid, maxDescriptors)
	if err != nil {
		r.t.Fatal(err)
	}
	r.take(pid, opened)
}

// A process that closes its files, or becomes another program, is no client any more. What it has left is held as a dead
// client's is.
func TestAClientThatClosesItsFiles(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.still()
	c := r.child(opens + waits + "exec 5<&- 6<&- 7<&- 8<&-; echo closed; read x; ")
	r.looksAt(c.Process.Pid)
	r.partClients(time.Now())
	if len(r.living) != 1 || len(r.dead) != 0 {
		t.Fatalf("%d clients live, %d are dead", len(r.living), len(r.dead))
	}
	c.enter()
	c.says("closed")
	r.partClients(time.Now())
	if len(r.living) != 0 || len(r.dead) != 1 || len(r.dead[0].files) != 3 {
		t.Errorf("%d clients live, dead are %+v", len(r.living), r.dead)
	}
}

// A client that has other files at the numbers of the first ones is held with both until the first ones are let go.
func TestAClientThatOpensItsFilesAgain(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.still()
	c := r.child(opens + waits + opens + "echo again; read x; ")
	r.looksAt(c.Process.Pid)
	c.enter()
	c.says("again")
	r.looksAt(c.Process.Pid)
	if r.files != 6 || len(r.dead) != 1 || len(r.dead[0].files) != 3 || len(r.living[c.Process.Pid].files) != 3 {
		t.Errorf("%d files, dead are %+v", r.files, r.dead)
	}
}

// A client that ends between two questions leaves nothing that wakes the guard for ever.
func TestAClientThatEndsWhileItIsTaken(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.still()
	before := descriptors(t)
	for range 20 {
		c := r.child(opens + waits)
		opened, err := r.kernel.openedBy(c.Process.Pid, maxDescriptors)
		if err != nil {
			t.Fatal(err)
		}
		killed := make(chan struct{})
		go func() { _ = c.Process.Kill(); close(killed) }()
		r.take(c.Process.Pid, opened)
		<-killed
		_ = c.Wait()
		if taken := r.living[c.Process.Pid]; taken != nil {
			for !pollable(taken.pidfd) {
				time.Sleep(time.Millisecond)
			}
			r.clientDied(c.Process.Pid, time.Now())
		}
		r.release(time.Now())
	}
	for began := time.Now(); r.files > 0 && time.Since(began) < soon; r.release(time.Now()) {
		time.Sleep(time.Millisecond)
	}
	for r.takers.leave(); r.takers.stuck.Load() > 0; time.Sleep(time.Millisecond) {
	}
	r.events.wait(time.Now()) // the closings
	if s := r.events.wait(time.Now().Add(50 * time.Millisecond)); len(s.died) > 0 {
		t.Errorf("woken for %v", s.died)
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors were open, %d are", before, after)
	}
}

// descriptors counts the open ones of this process. Those of children's pipes go with the children.
func descriptors(t *testing.T) (count int) {
	t.Helper()
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && !strings.HasPrefix(target, "pipe:") {
			count++
		}
	}
	return count
}

// The same program as the guard's own is a guard: it holds files as clients do, and is none.
func TestAGuardIsNoClient(t *testing.T) {
	if os.Getenv("GUARD_TEST_OPENS") != "" {
		for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm", "nvidia0"} {
			if _, err := unix.Open(name, unix.O_RDONLY, 0); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0)
	}
	r := newRoom(t, time.Minute)
	r.still()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := r.child("GUARD_TEST_OPENS=1 exec " + self + " -test.run=TestAGuardIsNoClient")
	r.looksAt(c.Process.Pid)
	if len(r.living) != 0 {
		t.Errorf("taken: %+v", r.living)
	}
}

// A server is a child of one of the job's daemons.
func TestAServerIsNoClient(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.still()
	self, err := site.CurrentProcess()
	if err != nil {
		t.Fatal(err)
	}
	r.Daemons = func() []site.Process { return []site.Process{self} }
	r.looksAt(r.child(opens + waits).Process.Pid)
	if len(r.living) != 0 {
		t.Errorf("taken: %+v", r.living)
	}
}

// A process of another user is none of the job's.
func TestAnotherUsersProcessIsNoClient(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.still()
	r.UID++
	r.looksAt(r.child(opens + waits).Process.Pid)
	if len(r.living) != 0 {
		t.Errorf("taken: %+v", r.living)
	}
}

// At the bound the oldest dead are let go for the files of the living; with none dead, files stay unheld and are counted.
func TestTheBoundOfFiles(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.still()
	first := r.child(opens + waits)
	r.looksAt(first.Process.Pid)
	more := maxFiles - r.files
	r.files += more // as if
	second := r.child(opens + waits)
	r.looksAt(second.Process.Pid)
	if r.Guard.state.Unheld != 3 || r.living[second.Process.Pid] != nil {
		t.Errorf("state %+v", r.Guard.state)
	}
	first.kill()
	r.clientDied(first.Process.Pid, time.Now())
	r.looksAt(second.Process.Pid)
	if r.Guard.state.Released[atBound] != 1 || len(r.dead) != 0 {
		t.Errorf("state %+v, dead are %+v", r.Guard.state, r.dead)
	}
	r.files -= more
	if c := r.living[second.Process.Pid]; c == nil {
		t.Error("the second client is not held")
	}
}

// Lines about single clients come to an end.
func TestTheLogIsBounded(t *testing.T) {
	r := newRoom(t, time.Minute)
	r.still()
	var log strings.Builder
	r.Log = zerolog.New(&log)
	for range 10 * maxLines {
		r.letGoOf(&client{died: time.Now()}, holdOver)
	}
	if lines := strings.Count(log.String(), "\n"); lines != maxLines || r.Guard.state.Released[holdOver] != 10*maxLines {
		t.Errorf("%d lines, state %+v", lines, r.Guard.state)
	}
}
