// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os"
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
	"golang.org/x/sys/unix"
)

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
	if len(children) != 1 {
		t.Fatalf("children: %v", children)
	}
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
	if len(r.living) > 0 || state.Unheld != 0 || !slices.Equal(state.Unguarded, want) || tries != 1 {
		t.Errorf("%+v, %d tries", state, tries)
	}
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
