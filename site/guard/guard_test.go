// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/pause"
	"github.com/slurm-mps/slurm-mps/site/guard/take"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// soon is the time limit for events that come at once on an idle machine.
const soon = 10 * time.Second

// devices is a folder with regular files in place of the driver's device files.
func devices(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"} {
		must.OK(t, os.WriteFile(filepath.Join(folder, name), nil, 0o644))
	}
	return folder
}

// testGuard is a guard in this process that guards children of the test, and the states that it reports.
type testGuard struct {
	*Guard
	notes
	t      *testing.T
	folder string // the folder of the devices
}

// notes is the record of a guard that keeps its last state in memory. A function that is nil does nothing.
type notes struct {
	mutex    sync.Mutex
	last     lease.GuardState
	promised func(time.Time)
	saves    func()
	members  []string // jobs that share the daemon
	gone     bool     // the lease
}

func (n *notes) Guards() int                            { return 1 }
func (n *notes) Leased() bool                           { return !n.gone }
func (n *notes) Published() bool                        { return true }
func (n *notes) Member(job string) bool                 { return slices.Contains(n.members, job) }
func (n *notes) TakerPlace() (*lease.TakerPlace, error) { return nil, nil }
func (n *notes) SaveRoom(lease.Room)                    {}

func (n *notes) Promise(by time.Time) {
	if n.promised != nil {
		n.promised(by)
	}
}

func (n *notes) Save(s lease.GuardState) {
	if n.saves != nil {
		n.saves()
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.last = s
	n.last.Released = maps.Clone(s.Released)
}

// newTestGuard makes a guard of GPUs 0 and 1 that does not run yet.
func newTestGuard(t *testing.T, hold time.Duration) *testGuard {
	t.Helper()
	r := &testGuard{t: t, folder: devices(t)}
	g, err := New(Options{
		Job: 7, UID: uint32(os.Geteuid()), GuardSettings: lease.GuardSettings{Hold: lease.Duration(hold), Pause: lease.Duration(5 * time.Second), Clients: 48}, Devices: r.folder,
		Minors: []int{0, 1}, Taker: takerLine, Pauser: pauserLine, Daemons: func() []proc.Process { return nil }, Record: &r.notes,
	})
	must.OK(t, err)
	g.Raised, g.takers.Wait = true, soon // a busy machine is no hostile process
	r.Guard = g
	return r
}

// runs runs the guard until the test ends.
func (r *testGuard) runs() {
	r.t.Helper()
	ended := make(chan struct{})
	go func() { r.Run(); close(ended) }()
	r.t.Cleanup(func() {
		r.Stop()
		<-ended
		if left := testproc.OpenBelow(r.folder); len(left) > 0 {
			r.t.Errorf("open after the end: %q", left)
		}
	})
}

// stillGuard makes a guard that never runs.
func stillGuard(t *testing.T, hold time.Duration) *testGuard {
	t.Helper()
	r := newTestGuard(t, hold)
	r.still()
	return r
}

// still closes the files of a guard that never runs.
func (r *testGuard) still() {
	r.t.Cleanup(func() {
		r.releaseAll()
		r.events.close()
	})
}

// becomes waits until this number of files is open in this process, and stays so. A file that is moved to another
// number is open twice for a moment.
func (r *testGuard) becomes(files int, within time.Duration) {
	r.t.Helper()
	const scans = 3
	for began, same := time.Now(), 0; same < scans; time.Sleep(time.Millisecond) {
		if same++; len(testproc.OpenBelow(r.folder)) != files {
			same = 0
		}
		if same == 0 && time.Since(began) > within {
			r.t.Fatalf("after %v the guard holds %q, want %d files", within, testproc.OpenBelow(r.folder), files)
		}
	}
}

// reports waits until the guard reports a wanted state.
func (r *testGuard) reports(what string, is func(lease.GuardState) bool) {
	r.t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		r.mutex.Lock()
		s := r.last
		r.mutex.Unlock()
		if is(s) {
			return
		}
		must.Have(r.t, time.Since(began) <= soon, "%s: %+v", what, s)
	}
}

// opens opens the files that a client has open: descriptors 5 to 8.
const opens = "exec 5<nvidiactl 6<nvidia-uvm 7<nvidia-uvm 8<nvidia0; "

// child runs a shell script in the folder of the devices. The script prints a line when it is ready. Enter writes to
// its stdin.
func (r *testGuard) child(script string) *child {
	r.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = r.folder
	return r.starts(cmd)
}

// starts starts a command that prints a line when it is ready.
func (r *testGuard) starts(cmd *exec.Cmd) *child {
	r.t.Helper()
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		r.t.Fatal(err1, err2)
	}
	must.OK(r.t, cmd.Start())
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

// A client's files are held at once, and closed when no other client is left.
func TestTheFilesOfAClientAreHeld(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.runs()
	c := r.child(opens + waits)
	r.becomes(3, soon)
	c.kill()
	r.becomes(0, soon)
	r.reports("released", func(s lease.GuardState) bool {
		return s.ClientsSeen == 1 && s.Released[noNeighbour] == 1 && s.Clients == 0
	})
}

// The memory driver's device file appears with the node's first server, which then writes to its log. The server's
// clients are found at once.
func TestADeviceThatComesLate(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	logs := t.TempDir()
	r.Logs = []string{logs}
	device := filepath.Join(r.folder, "nvidia-uvm")
	must.OK(t, os.Remove(device))
	delete(r.events.watched, device) // as if the file had never existed
	r.kernel.findDevices()
	r.watch()
	r.still()
	r.scan(time.Now())
	for _, path := range []string{device, filepath.Join(logs, "server.log")} {
		must.OK(t, os.WriteFile(path, nil, 0o644))
	}
	r.isWoken("the server's log does not wake the guard")
	r.scan(time.Now())
	c := r.child(opens + waits)
	r.isWoken("the new device's opening does not wake the guard")
	for end := time.Now().Add(soon); r.living[c.Process.Pid] == nil && time.Now().Before(end); {
		r.kernel.asks.begin() // on a busy machine an answer can be late, and the guard scans again then
		r.scan(time.Now())
	}
	if held := r.living[c.Process.Pid]; held == nil || len(held.files) != 3 {
		t.Errorf("held: %+v", held)
	}
}

// isWoken waits until an event wakes the guard for a scan.
func (r *testGuard) isWoken(otherwise string) {
	r.t.Helper()
	for end := time.Now().Add(soon); !r.events.wait(end).opened; {
		if time.Now().After(end) {
			r.t.Fatal(otherwise)
		}
	}
}

// A disk that does not answer delays neither the guard nor its end.
func TestAStateThatIsNotSaved(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	asked, answers := make(chan struct{}), make(chan struct{})
	r.saves = func() { asked <- struct{}{}; <-answers }
	ended := make(chan struct{})
	go func() { r.Run(); close(ended) }()
	<-asked
	r.child(opens + waits)
	r.becomes(3, rareScan/2)
	r.Stop()
	select {
	case <-ended:
	case <-time.After(soon):
		t.Error("the guard does not end")
	}
	go func() { <-asked }() // the last state
	close(answers)
}

// Beside a neighbour, the files are held for the policy's time, and not longer than the neighbour lives.
func TestFilesAreHeldBesideANeighbour(t *testing.T) {
	const hold = 500 * time.Millisecond
	r := stillGuard(t, hold)
	neighbour, victim := r.child(opens+waits), r.child(opens+waits)
	r.scanOne(neighbour.Process.Pid)
	r.scanOne(victim.Process.Pid)
	victim.kill()
	died := time.Now()
	r.clientDied(victim.Process.Pid, died)
	for _, c := range []struct {
		after time.Duration
		files int
	}{{0, 6}, {hold - 1, 6}, {hold, 3}} {
		r.release(died.Add(c.after))
		r.becomes(c.files, soon)
	}
	if s := r.Guard.state; s.Released[holdOver] != 1 || s.ClientsPeak != 2 {
		t.Errorf("%+v", s)
	}
	neighbour.kill()
	r.clientDied(neighbour.Process.Pid, died.Add(hold))
	r.release(died.Add(hold))
	r.becomes(0, soon)
}

// The GPU of a client may be opened long after its memory device. Then it is known after verifyAfter, not after
// rareScan.
func TestAGPUThatIsOpenedLate(t *testing.T) {
	r := stillGuard(t, time.Minute)
	victim := r.child(opens + waits)
	const script = "exec 5<nvidiactl 6<nvidia-uvm 7<nvidia-uvm; echo ready; read x; exec 8<nvidia1; echo open; read x; "
	late := r.child(script)
	r.scanOne(victim.Process.Pid)
	r.scanOne(late.Process.Pid)
	late.enter()
	late.says("open")
	victim.kill()
	r.clientDied(victim.Process.Pid, time.Now())
	at := r.living[late.Process.Pid].opened.Add(verifyAfter)
	r.scans.next, r.scans.rested = at.Add(rareScan), time.Time{}
	if r.release(at); len(r.dead) != 1 || r.living[late.Process.Pid].verify.After(at) {
		t.Fatalf("%d are dead, and the next check is at %v", len(r.dead), r.living[late.Process.Pid].verify)
	}
	if r.verifyClients(at); r.scans.next.After(at) {
		t.Fatalf("the next scan is %v late", r.scans.next.Sub(at))
	}
	r.scan(at)
	if r.release(at); r.Guard.state.Released[noNeighbour] != 1 {
		t.Errorf("%+v", r.Guard.state)
	}
}

// The checks of clients wait for the budget, but not without end: one is made in a time for each client.
func TestAChecksDelayHasAnEnd(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	for range 3 {
		r.scanOne(r.child(opens + waits).Process.Pid)
	}
	at := time.Now().Add(verifyAfter)
	r.budget.own = account{spent: time.Hour, asOf: at}
	for i := range 4 {
		late := at.Add(time.Duration(i) * 3 * verifyLate)
		r.verifyClients(late)
		r.verifyClients(late.Add(3*verifyLate - 1))
		checks := 0 // two of each client, of which the second one is the last
		for _, c := range r.living {
			if c.missed {
				checks++
			}
			if c.verify.IsZero() {
				checks++
			}
		}
		if checks != i+1 {
			t.Errorf("%d checks in %v", checks, late.Sub(at))
		}
	}
}

// A fork has its parent's files. The guard holds them once, until both processes have ended. Both count as one
// client.
func TestAForkSharesItsParentsFiles(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.runs()
	parent := r.child("sleep 0.2; " + opens + "(exec 0</dev/null; exec sleep 60) & echo ready $!; read x; ")
	r.becomes(3, soon)
	r.reports("both are seen", func(s lease.GuardState) bool { return s.Clients == 1 && s.ClientsSeen == 1 && s.Files == 3 })
	parent.kill()
	r.reports("the fork alone is no client", func(s lease.GuardState) bool { return s.Clients == 0 })
	r.becomes(3, 0) // the fork has the files
	for pid, c := range forks(r.folder, parent.Process.Pid) {
		t.Logf("fork %d", pid)
		_ = c.Kill()
	}
	r.becomes(0, soon)
}

// forks returns the processes that work in a folder, except one.
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

// A fork that is found before its parent does not count as a neighbour in the parent's place.
func TestAForkThatIsFoundFirst(t *testing.T) {
	r := stillGuard(t, time.Minute)
	parent := r.child("sleep 0.2; " + opens + "sleep 60 & echo ready; read x; ")
	for pid, p := range forks(r.folder, parent.Process.Pid) {
		defer func() { _ = p.Kill() }()
		r.scanOne(pid)
	}
	r.scanOne(parent.Process.Pid)
	if c := r.living[parent.Process.Pid]; len(r.living) != 2 || c == nil || c.inherits() || r.files != 3 {
		t.Errorf("%d clients with %d files, parent %+v", len(r.living), r.files, c)
	}
}

// What one of the guard's own programs starts is not a client.
func TestWhatAHelperStartsIsNoClient(t *testing.T) {
	r := stillGuard(t, time.Minute)
	helper := must.Get(proc.StartPiped("/bin/sh", "-c", "cd "+r.folder+"; ("+opens+waits+"); exit"))(t)
	defer func() { helper.In.Close(); <-helper.Ended }()
	if line, err := bufio.NewReader(helper.Out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("it prints %q, %v", line, err)
	}
	started := forks(r.folder, helper.PID)
	for pid := range started {
		r.scanOne(pid)
	}
	if len(started) != 1 || len(r.living) != 0 || r.files != 0 {
		t.Errorf("of %d processes, %d are clients with %d files", len(started), len(r.living), r.files)
	}
}

// A scan may come while a client opens its files. Before the next scan, the client may fork, and the fork may be
// scanned first. The new file still belongs to the client.
func TestAForkThatIsFoundWithANewFile(t *testing.T) {
	r := stillGuard(t, time.Minute)
	parent := r.child("sleep 0.2; exec 5<nvidiactl 6<nvidia-uvm 8<nvidia0; echo ready; read x; exec 7<nvidia-uvm; sleep 60 & echo forked; read x; ")
	r.scanOne(parent.Process.Pid)
	parent.enter()
	parent.says("forked")
	for pid, p := range forks(r.folder, parent.Process.Pid) {
		defer func() { _ = p.Kill() }()
		r.scanOne(pid)
	}
	r.scanOne(parent.Process.Pid)
	if r.state.ClientsSeen != 1 || r.neighbours() != 1 || r.files != 3 {
		t.Errorf("%d clients seen, %d neighbours with %d files", r.state.ClientsSeen, r.neighbours(), r.files)
	}
}

// A process that closes a file and opens it again takes only one place on the GPU. PyTorch does so while it starts.
func TestAClientThatReopensTakesOnePlace(t *testing.T) {
	r := stillGuard(t, time.Minute)
	c := r.child("exec 5<nvidiactl 6<nvidia-uvm 8<nvidia0; echo ready; read x; exec 6<&-; exec 7<nvidia-uvm; echo again; read x; ")
	r.scanOne(c.Process.Pid)
	c.enter()
	c.says("again")
	r.scanOne(c.Process.Pid)
	if len(r.dead) != 1 || r.counted(time.Now()).counts[0].places != 1 {
		t.Errorf("%d parts of the dead, %d places", len(r.dead), r.counts[0].places)
	}
}

// If Slurm makes no control groups, a client of another job of the same user is recognised by its environment. While it
// starts, it also has this job's GPU open.
func TestAClientOfAnotherJobOfTheUser(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.Pipes = []string{"/ours"}
	r.recorder = &recorder{events: make(chan usage.Event, maxEvents)}
	r.runs()
	start := func(variables string) { r.child("exec env " + variables + " sh -c '" + opens + waits + "'") }
	start("SLURM_JOB_ID=7 CUDA_MPS_PIPE_DIRECTORY=/ours")
	start("SLURM_JOB_ID=7 CUDA_MPS_PIPE_DIRECTORY=/other") // the daemon of /other may not exist
	start("SLURM_JOB_ID=8 CUDA_MPS_PIPE_DIRECTORY=/ours")
	start("CUDA_MPS_PIPE_DIRECTORY=/other") // of a job that is not known
	r.reports("clients of this job", func(s lease.GuardState) bool { return s.Clients == 4 && s.ClientsSeen == 4 })
	start("SLURM_JOB_ID=8 CUDA_MPS_PIPE_DIRECTORY=/other")
	for late := time.After(soon); ; {
		select {
		case e := <-r.recorder.events:
			if !e.NoClient {
				continue
			}
		case <-late:
			t.Fatal("the fifth is not recognised")
		}
		break
	}
	ours := lease.Counts{ClientsSeen: 4, ClientsPeak: 4}
	r.reports("and is not ours", func(s lease.GuardState) bool { return s.Clients == 4 && s.Counts == ours && s.Files == 12 })
}

// scanOne scans one process, as a scan does.
func (r *testGuard) scanOne(pid int) {
	r.t.Helper()
	r.answered(func() {
		opened, err := r.kernel.openedBy(pid, maxDescriptors)
		if err == nil {
			r.take(pid, opened, false)
		} else if !errors.Is(err, proc.ErrSilent) {
			r.t.Fatal(err)
		}
	})
}

// answered repeats what asks processes until all of them have answered in time. On a busy machine an answer can be
// late, and the guard asks again then.
func (r *testGuard) answered(ask func()) {
	r.t.Helper()
	a := r.kernel.asks
	silent := func() bool {
		a.mutex.Lock()
		defer a.mutex.Unlock()
		return len(a.silent) > 0
	}
	for end := time.Now().Add(soon); ; {
		a.begin()
		a.returned.Store(false)
		ask()
		for silent() {
			must.Have(r.t, !time.Now().After(end), "a process does not answer")
			time.Sleep(time.Millisecond)
		}
		if !a.returned.Load() {
			return
		}
	}
}

// A process that closes its files, or execs another program, is no longer a client. Its closed files are held like a
// dead client's.
func TestAClientThatClosesItsFiles(t *testing.T) {
	r := stillGuard(t, time.Minute)
	c := r.child(opens + waits + "exec 5<&- 6<&- 7<&- 8<&-; echo closed; read x; ")
	r.scanOne(c.Process.Pid)
	r.findClosed(time.Now())
	if len(r.living) != 1 || len(r.dead) != 0 {
		t.Fatalf("%d clients live, %d are dead", len(r.living), len(r.dead))
	}
	c.enter()
	c.says("closed")
	r.findClosed(time.Now())
	if len(r.living) != 0 || len(r.dead) != 1 || len(r.dead[0].files) != 3 {
		t.Errorf("%d clients live, dead are %+v", len(r.living), r.dead)
	}
}

// If a client opens other files at the same numbers, the guard holds both files, until it closes the first files.
func TestAClientThatOpensItsFilesAgain(t *testing.T) {
	r := stillGuard(t, time.Minute)
	c := r.child(opens + waits + opens + "echo again; read x; ")
	r.scanOne(c.Process.Pid)
	c.enter()
	c.says("again")
	r.scanOne(c.Process.Pid)
	if r.files != 6 || len(r.dead) != 1 || len(r.dead[0].files) != 3 || len(r.living[c.Process.Pid].files) != 3 {
		t.Errorf("%d files, dead are %+v", r.files, r.dead)
	}
}

// A client that ends during its admission leaves no descriptor that wakes the guard for ever.
func TestAClientThatEndsWhileItIsTaken(t *testing.T) {
	r := stillGuard(t, time.Minute)
	before := descriptors(t)
	for range 20 {
		c := r.child(opens + waits)
		opened := must.Get(r.kernel.openedBy(c.Process.Pid, maxDescriptors))(t)
		killed := make(chan struct{})
		go func() { _ = c.Process.Kill(); close(killed) }()
		r.take(c.Process.Pid, opened, false)
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
	taker := r.takers.PID()
	for r.takers.Abandon(0); taker > 0 && proc.Exists(taker); time.Sleep(time.Millisecond) {
	}
	r.events.wait(time.Now()) // the events of the closed files
	if s := r.events.wait(time.Now().Add(50 * time.Millisecond)); len(s.died) > 0 {
		t.Errorf("woken for %v", s.died)
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors were open, %d are", before, after)
	}
}

// descriptors counts this process's open descriptors. Those of children's pipes are closed with the children.
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

// A process that runs the guard's own program is a guard: it holds files like a client, but it is not a client.
func TestAGuardIsNoClient(t *testing.T) {
	if os.Getenv("GUARD_TEST_OPENS") != "" {
		for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm", "nvidia0"} {
			must.Get(unix.Open(name, unix.O_RDONLY, 0))(t)
		}
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0)
	}
	r := stillGuard(t, time.Minute)
	self := must.Get(os.Executable())(t)
	c := r.child("GUARD_TEST_OPENS=1 exec " + self + " -test.run=TestAGuardIsNoClient")
	r.scanOne(c.Process.Pid)
	must.Equal(t, fmt.Sprintf("taken: %+v", r.living), len(r.living), 0)
}

// A server is a child of one of the job's daemons. A process of another user does not belong to the job.
func TestAServerIsNoClient(t *testing.T) {
	self := must.Get(proc.Current())(t)
	for what, change := range map[string]func(*Options){
		"a server":       func(o *Options) { o.Daemons = func() []proc.Process { return []proc.Process{self} } },
		"another user's": func(o *Options) { o.UID++ },
	} {
		r := stillGuard(t, time.Minute)
		change(&r.Options)
		if r.scanOne(r.child(opens + waits).Process.Pid); len(r.living) != 0 {
			t.Errorf("%s: taken: %+v", what, r.living)
		}
	}
}

// A daemon has a pid before it runs its program. A server of another job that the guard finds then is taken for a
// client, and let go before it counts as a process outside of MPS.
//
// Contract: K4
func TestAServerThatIsKnownLate(t *testing.T) {
	r := stillGuard(t, time.Minute)
	self := must.Get(proc.Current())(t)
	early := must.Get(proc.ReadStat(r.child(waits).Process.Pid))(t)
	r.Daemons = func() []proc.Process { return []proc.Process{early.Process} }
	server := r.child(opens + waits).Process.Pid
	r.scanOne(server)
	must.Have(t, r.living[server] != nil, "it is known to be a server, so this test is of no use")
	r.Daemons = func() []proc.Process { return []proc.Process{self} }
	at := time.Now().Add(verifyAfter)
	if r.verifyClients(at); r.scans.next.After(at) {
		t.Errorf("no scan follows the first check: the next one is %s later", r.scans.next.Sub(at))
	}
	r.scanOne(server)
	if r.living[server] != nil || r.state.ClientsSeen != 0 {
		t.Errorf("a server is still a client: %+v", r.Guard.state)
	}
}

// At the limit of files, the oldest dead clients are released for files of the living. If there is no dead client,
// files are not held and are counted.
func TestTheBoundOfFiles(t *testing.T) {
	r := stillGuard(t, time.Minute)
	first := r.child(opens + waits)
	for began := time.Now(); r.living[first.Process.Pid] == nil && time.Since(began) < soon; { // an answer may be late
		r.kernel.asks.begin()
		r.scanOne(first.Process.Pid)
	}
	more := maxFiles - r.files
	r.files += more // as if the guard held them
	second := r.child(opens + waits)
	r.scanOne(second.Process.Pid)
	if r.Guard.state.Unheld != 3 || r.living[second.Process.Pid] != nil {
		t.Errorf("state %+v", r.Guard.state)
	}
	first.kill()
	r.clientDied(first.Process.Pid, time.Now())
	r.scanOne(second.Process.Pid)
	if r.Guard.state.Released[atBound] != 1 || len(r.dead) != 0 {
		t.Errorf("state %+v, dead are %+v", r.Guard.state, r.dead)
	}
	r.files -= more
	if c := r.living[second.Process.Pid]; c == nil {
		t.Error("the second client is not held")
	}
}

// The number of log lines about single clients is limited.
func TestTheLogIsBounded(t *testing.T) {
	r := stillGuard(t, time.Minute)
	lines := 0
	r.Log = func(Line) { lines++ }
	for range 10 * maxLines {
		r.releaseClient(&client{died: time.Now()}, holdOver)
	}
	if lines != maxLines || r.Guard.state.Released[holdOver] != 10*maxLines {
		t.Errorf("%d lines, state %+v", lines, r.Guard.state)
	}
}

// takerLine and pauserLine run this test's own program as a taker and as a process that pauses.
var takerLine, pauserLine = []string{"/proc/self/exe", "--take"}, []string{"/proc/self/exe", "--pause"}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case "--take":
			err = take.Run(0)
		case "--pause":
			var limit time.Duration
			if limit, err = time.ParseDuration(os.Args[2]); err == nil {
				err = pause.Run(limit)
			}
		case "--count":
			testproc.Count()
		case "--refuse":
			refuse()
		case "--job":
			heldGuard()
		case "--trace":
			err = trace(os.Args[2])
		default:
			os.Exit(m.Run())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}
