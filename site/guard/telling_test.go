// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// The job is told of an end once, if a client ended badly with work on the GPU and its neighbours have outlived that.
func TestWhichEndsAreTold(t *testing.T) {
	died := time.Now()
	for _, c := range []struct {
		name   string
		change func(g *Guard, dead *client, s *situation)
		after  time.Duration
		want   int
	}{
		{"killed, with work", func(*Guard, *client, *situation) {}, usage.HarmTime, 1},
		{"too early", func(*Guard, *client, *situation) {}, usage.HarmTime - 1, 0},
		{"in order", func(_ *Guard, dead *client, _ *situation) { dead.inOrder = true }, usage.HarmTime, 0},
		{"of unknown end", func(_ *Guard, dead *client, _ *situation) { dead.exit = exitStatus{} }, usage.HarmTime, 0},
		{"without a neighbour", func(_ *Guard, _ *client, s *situation) { s.neighbours = false }, usage.HarmTime, 0},
		{"without work", func(g *Guard, _ *client, _ *situation) { g.usage.busy[0] = 0 }, usage.HarmTime, 0},
		{"the job was told often", func(g *Guard, _ *client, _ *situation) { g.told = maxTold }, usage.HarmTime, 0},
		{"the job was told less often", func(g *Guard, _ *client, _ *situation) { g.told = maxTold - 1 }, usage.HarmTime, 1},
	} {
		r := stillGuard(t, time.Minute)
		neighbour := r.child(opens + waits)
		r.scanOne(neighbour.Process.Pid)
		dead := clientOf(1<<30, 1)
		dead.died, dead.exit = died, exitStatus{9, true}
		r.usage.busy = []uint64{uint64(died.Add(time.Second).UnixMicro()), 0}
		r.usage.shared = make([]sharing, 2)
		s := situation{neighbours: true}
		c.change(r.Guard, dead, &s)
		for range 2 {
			r.tellEnd(dead, s, died.Add(c.after))
		}
		must.Equal(t, c.name, len(r.notices), c.want)
	}
}

// The memory of a client is free when the driver does not list it any more, or freeWait after the close at the latest.
func TestWhenMemoryIsFree(t *testing.T) {
	closed := time.Now()
	const pid = 42
	for _, c := range []struct {
		name   string
		closed time.Time
		after  time.Duration
		line   time.Duration // since the close, of the last line of gpu-usage
		listed bool
		lives  bool
		want   bool
	}{
		{"the close has not returned", time.Time{}, time.Hour, time.Second, false, false, false},
		{"no line since", closed, time.Millisecond, -time.Millisecond, false, false, false},
		{"the driver lists it", closed, 20 * time.Millisecond, 10 * time.Millisecond, true, false, false},
		{"the driver does not list it", closed, 20 * time.Millisecond, 10 * time.Millisecond, false, false, true},
		{"the driver lists it for long", closed, freeWait + 1, 10 * time.Millisecond, true, false, true},
		{"it lives on", closed, time.Millisecond, -time.Millisecond, true, true, true},
	} {
		dead := clientOf(pid, 1)
		dead.lives = c.lives
		g := &Guard{closing: map[*client]time.Time{dead: c.closed}, usage: usages{gauge: &gauge.Gauge{Child: &proc.Child{}}, asOf: closed.Add(c.line)}}
		g.usage.gpus = []gauge.Usage{{Known: true, Clients: map[int]int{}}}
		if c.listed {
			g.usage.gpus[0].Clients[pid] = 100
		}
		g.noteFreed(closed.Add(c.after))
		if free := len(g.closing) == 0; free != c.want {
			t.Errorf("%s: free %v", c.name, free)
		}
	}
}

// A process that ended in order and never had a context does not count as a client.
func TestAProcessThatOnlyAsks(t *testing.T) {
	for reason, want := range map[string]int{noContext: 1, endedWell: 2} {
		r := stillGuard(t, time.Minute)
		c := &client{proc: proc.Process{PID: 1 << 30}, seen: true}
		r.dead, r.Guard.state.ClientsSeen = []*client{c}, 2
		if r.releaseClient(c, reason); r.Guard.state.ClientsSeen != want || len(r.dead) != 0 {
			t.Errorf("%s: %d clients seen, want %d", reason, r.Guard.state.ClientsSeen, want)
		}
	}
}

func TestEndText(t *testing.T) {
	p := proc.Process{PID: 4711}
	g := Guard{Options: Options{Minors: []int{2, 5}}, names: map[proc.Process]string{}}
	for _, c := range []struct {
		name       string
		exit       exitStatus
		gpus       uint64
		neighbours int
		want       string
	}{
		{"rank 3", exitStatus{9, true}, 2, 3, "slurm-mps: rank 3 ended by signal 9 while GPU 5 had work; its 3 neighbours go on\n"},
		{"rank 3", exitStatus{9, true}, 3, 3,
			"slurm-mps: rank 3 ended by signal 9 while GPU 2 or GPU 5 had work; its 3 neighbours go on\n"},
		{"", exitStatus{1 << 8, true}, 0, 1, "slurm-mps: process 4711 ended with status 1 while its GPU had work; its 1 neighbour goes on\n"},
	} {
		g.names[p] = c.name
		if got := g.endText(&client{proc: p, exit: c.exit, gpus: c.gpus}, c.neighbours); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// The kernel logs each refusal to duplicate a file, and does not change its answer. So a process whose files may not be
// duplicated is asked once, however often it is looked at.
func TestARefusalIsNotAskedAgain(t *testing.T) {
	r := stillGuard(t, time.Minute)
	r.takers.Line = []string{"/proc/self/exe", "--refuse"}
	c := r.child(opens + waits)
	for range 3 {
		r.scanOne(c.Process.Pid)
	}
	must.Equal(t, "asked", r.state.Unheld, 1)
}

// A process that is killed has closed its files some time before it is a zombie. These are the files of a dead client,
// and not of one that has closed them in order: its work may be in flight.
//
// Contract: G2
func TestAProcessThatIsExiting(t *testing.T) {
	must.Root(t)
	const tries = 100 // this process must run in the moment between the two
	for range tries {
		if sawExiting(t) {
			return
		}
	}
	t.Fatalf("none of %d processes is seen between the close of its files and its end", tries)
}

// sawExiting kills a client, and checks what the guard makes of it between the close of its files and its end. It reports
// false if it was not seen there.
func sawExiting(t *testing.T) bool {
	t.Helper()
	r := stillGuard(t, time.Minute)
	pid := r.lingers().Process.Pid
	r.scanOne(pid)
	living := r.living[pid]
	if living == nil {
		t.Fatalf("it is no client: %+v", r.Guard.state)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	for began := time.Now(); ; {
		stat, err := proc.ReadStat(pid)
		switch {
		case err != nil || stat.State == 'Z':
			return false
		case stat.Exiting && closedAll(pid):
			if r.addClosed(living, time.Now()); len(r.dead) > 0 {
				t.Errorf("a killed client has ended in order: %+v", r.dead[0])
			}
			return true
		case time.Since(began) > soon:
			t.Fatal("it does not end")
		}
	}
}

// closedAll reports whether a process has no files any more.
func closedAll(pid int) bool {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return err == nil && len(entries) == 0
}

// lingers starts a client that takes long to end after its files are closed: the kernel waits for each of these
// sockets.
func (r *testGuard) lingers() *child {
	r.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "exec 5<nvidiactl 6<nvidia-uvm 8<nvidia0; echo ready; read x")
	cmd.Dir = r.folder
	for range 30 {
		fd := must.Get(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0))(r.t)
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fd), "socket"))
	}
	c := r.starts(cmd)
	for _, socket := range cmd.ExtraFiles {
		socket.Close()
	}
	return c
}

// refuse is a taker that may duplicate nothing.
func refuse() {
	question := make([]byte, 4096)
	for {
		n, _, _, _, err := unix.Recvmsg(0, question, nil, 0) // the kernel drops the pidfd
		if err != nil || n == 0 {
			os.Exit(0)
		}
		code := binary.NativeEndian.AppendUint32(nil, uint32(unix.EPERM))
		if unix.Sendmsg(0, code, nil, nil, 0) != nil {
			os.Exit(1)
		}
	}
}
