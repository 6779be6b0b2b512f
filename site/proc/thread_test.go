// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/firstthread"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// shell starts a shell with an open file and a child, and returns when it waits. The library is "" for none.
func shell(t *testing.T, library string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "exec 5</dev/null; sleep 60 5<&- & echo ready; read x")
	cmd.Env = append(os.Environ(), "OF_A_THREAD=seen", "LD_PRELOAD="+library)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	must.OK(t, errors.Join(err1, err2, cmd.Start()))
	t.Cleanup(func() {
		for _, child := range Children(cmd.Process.Pid) {
			_ = unix.Kill(child, unix.SIGKILL)
		}
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd
}

// reads are the readers of a process, with what each reads of a living one.
var reads = []struct {
	name string
	of   func(p Process) any
}{
	{"EachDescriptor", func(p Process) any {
		var numbers []int
		_, err := EachDescriptor(p.PID, func(_, number int) bool {
			if number < 10 { // a shell keeps its script in a high one
				numbers = append(numbers, number)
			}
			return true
		})
		return fmt.Sprint(numbers, err)
	}},
	{"Resident", func(p Process) any { return Resident(p.PID) > 100<<10 }},
	{"GroupsOf", func(p Process) any { groups, err := GroupsOf(p.PID); return fmt.Sprint(groups, err) }},
	{"Variables", func(p Process) any { return fmt.Sprint(Variables(context.Background(), p, "OF_A_THREAD")) }},
	{"CommandLines", func(p Process) any { return fmt.Sprint(CommandLines(context.Background(), []Process{p})) }},
	{"Programs", func(p Process) any { return Programs(context.Background(), []Process{p})[0] }},
	{"Namespace", func(p Process) any { name, err := Namespace(p.PID, "mnt"); return fmt.Sprint(name, err) }},
	{"Name", func(p Process) any { name, err := Name(p.PID); return fmt.Sprint(name, err) }},
	{"Exists", func(p Process) any { return Exists(p.PID) }},
	{"Owner", func(p Process) any { uid, ok := Owner(p.PID); return fmt.Sprint(uid, ok) }},
	{"UIDs", func(p Process) any { uids, err := UIDs(p.PID); return fmt.Sprint(uids, err) }},
	{"ReadStatus", func(p Process) any {
		s, err := ReadStatus(p.PID)
		return fmt.Sprint(string(s.State), s.Parent, s.Tracer, s.Running(), s.Stopped(), err)
	}},
	{"ReadStat", func(p Process) any { s, err := ReadStat(p.PID); return fmt.Sprint(s.Parent, s.Running(), err) }},
	{"Running", func(p Process) any { return p.Running() }},
	{"Left", func(p Process) any { return len(Left([]Process{p})) }},
	{"Ran", func(p Process) any { return Ran([]Process{p})[0] }},
	{"Children", func(p Process) any { return len(Children(p.PID)) }},
	{"Children of its parent", func(p Process) any { return slices.Contains(Children(os.Getpid()), p.PID) }},
}

// A process whose first thread has ended reads like any other, while other threads live.
func TestAProcessWithoutItsFirstThread(t *testing.T) {
	library := must.Get(firstthread.Build(t.TempDir()))(t)
	identify := func(cmd *exec.Cmd) Process {
		stat := must.Get(ReadStat(cmd.Process.Pid))(t)
		return stat.Process
	}
	headless := shell(t, library)
	whole, part := identify(shell(t, "")), identify(headless)
	if stat, err := ReadStat(part.PID); err != nil || stat.State != 'Z' || stat.Threads != 2 {
		t.Fatalf("the first thread has not ended: %+v, %v", stat, err)
	}
	if first, second := Thread(whole.PID), Thread(part.PID); first != whole.PID || second == part.PID || second == 0 {
		t.Errorf("threads %d of %v, %d of %v", first, whole, second, part)
	}
	for _, r := range reads {
		for began := time.Now(); ; time.Sleep(time.Millisecond) { // until both sleep in their read
			want, got := r.of(whole), r.of(part)
			if got == want {
				break
			}
			if time.Since(began) > 5*time.Second {
				t.Errorf("%s: %v, of another process %v", r.name, got, want)
				break
			}
		}
	}
	_ = unix.Kill(part.PID, unix.SIGSTOP)
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if status, err := ReadStatus(part.PID); err == nil && status.Stopped() {
			break
		}
		must.Have(t, time.Since(began) <= 5*time.Second, "a stopped process does not count as stopped")
	}
	must.Note(t, part.Kill(unix.SIGKILL))
	for began := time.Now(); part.Running(); time.Sleep(time.Millisecond) {
		must.Have(t, time.Since(began) <= 5*time.Second, "it lives on")
	}
	if thread := Thread(part.PID); thread != 0 {
		t.Errorf("a zombie has the living thread %d", thread)
	}
	if _, err := EachDescriptor(part.PID, func(int, int) bool { return true }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the files of a zombie: %v", err)
	}
}
