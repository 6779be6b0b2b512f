// SPDX-License-Identifier: Apache-2.0

package pause

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"golang.org/x/sys/unix"
)

// pauserLine runs this test's own program as a process that pauses.
var pauserLine = []string{"/proc/self/exe", "--pause"}

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == pauserLine[1] {
		limit, err := time.ParseDuration(os.Args[2])
		if err == nil {
			err = Run(limit)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "--count":
			testproc.Count()
		case "--flip":
			flip()
		case "--churn", "--exec":
			churn()
		}
	}
	os.Exit(m.Run())
}

// soon is a long time for what takes a moment.
const soon = 10 * time.Second

// pauser is a process that pauses.
type pauser struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func newPauser(t *testing.T, limit string) *pauser {
	t.Helper()
	cmd := exec.Command(pauserLine[0], pauserLine[1], limit)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &pauser{cmd, in, bufio.NewReader(out)}
}

// asks asks for the pause of a process and returns the answer.
func (p *pauser) asks(t *testing.T, of proc.Process) string {
	t.Helper()
	return p.asksOf(t, of, os.Geteuid())
}

func (p *pauser) asksOf(t *testing.T, of proc.Process, uid int) string {
	t.Helper()
	fmt.Fprintln(p.in, of.PID, of.Start, uid)
	return strings.TrimSpace(must.Get(p.out.ReadString('\n'))(t))
}

// A paused process does nothing, and continues when the pausing process ends, however it ends.
func TestAPauseEndsWithItsProcess(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit string
		end   func(*pauser)
	}{
		{"its stdin ends", "1m", func(p *pauser) { p.in.Close() }},
		{"it is killed", "1m", func(p *pauser) { _ = p.Process.Kill() }},
		{"it is stopped, and its time is over", "1ms", func(p *pauser) { _ = p.Process.Signal(unix.SIGSTOP) }},
		{"its time is over", "1ms", func(*pauser) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			counters := []*testproc.Counter{testproc.NewCounter(t), testproc.NewCounter(t)}
			p := newPauser(t, c.limit)
			for _, one := range counters {
				if answer := p.asks(t, one.Identity(t)); answer != done {
					t.Fatalf("the answer is %q", answer)
				}
			}
			for _, one := range counters {
				must.Hold(t, !one.Counts(), "a paused process counts")
			}
			c.end(p)
			for _, one := range counters {
				one.Resumes(t, c.name)
			}
		})
	}
}

// A process that is stopped before the pause stays stopped after it, and so does one that is stopped during the pause.
func TestAPauseKeepsAStop(t *testing.T) {
	for _, during := range []bool{false, true} {
		c := testproc.NewCounter(t)
		p := newPauser(t, "1m")
		if !during {
			_ = c.Process.Signal(unix.SIGSTOP)
		}
		if answer := p.asks(t, c.Identity(t)); answer != done {
			t.Fatalf("the answer is %q", answer)
		}
		if during {
			_ = c.Process.Signal(unix.SIGSTOP)
		}
		p.in.Close()
		_ = p.Wait()
		must.Hold(t, !c.Counts(), "stopped during the pause %v: the process continues", during)
		_ = c.Process.Signal(unix.SIGCONT)
		c.Resumes(t, "after SIGCONT")
	}
}

// The parent of a process that is killed during a pause learns of its end during the pause.
func TestAProcessThatIsKilledDuringAPause(t *testing.T) {
	c := testproc.NewCounter(t)
	p := newPauser(t, "1m")
	p.asks(t, c.Identity(t))
	_ = c.Process.Kill()
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err := <-ended:
		if err == nil || err.Error() != "signal: killed" {
			t.Error(err)
		}
	case <-time.After(soon):
		t.Error("the parent waits for a process that was killed")
	}
}

// A thread that a traced thread starts is traced from its first instruction. It may be seen before it has stopped, and
// the pause goes on.
func TestAPauseOfAThreadThatHasJustStarted(t *testing.T) {
	c := testproc.NewCounter(t)
	runtime.LockOSThread() // one thread must do all that follows
	defer runtime.UnlockOSThread()
	first, second := tracer{stopped: map[int]bool{}}, tracer{stopped: map[int]bool{}}
	must.OK(t, first.seizeAll(c.Process.Pid, time.Now().Add(soon)))
	must.Note(t, second.seizeAll(c.Process.Pid, time.Now().Add(soon)))
	stopped := func() bool { return !slices.Contains(slices.Collect(maps.Values(first.stopped)), false) }
	for began := time.Now(); !stopped() && time.Since(began) < soon; {
		first.wait()
	}
	for thread := range first.stopped {
		_ = unix.PtraceDetach(thread)
	}
	c.Resumes(t, "after the pause")
}

// Another process with the same pid, a process that runs as another user by now, a process that is gone, and a process
// that another one traces are not paused.
//
// Contract: G3
func TestWhatIsNotPaused(t *testing.T) {
	c := testproc.NewCounter(t)
	p := newPauser(t, "1m")
	other := c.Identity(t)
	other.Start++
	if answer := p.asks(t, other); answer != done {
		t.Errorf("the answer is %q", answer)
	}
	must.Equal(t, "of a process that is gone", p.asks(t, proc.Process{PID: 1 << 30, Start: 1}), done)
	must.Equal(t, "of another user's process", p.asksOf(t, c.Identity(t), os.Geteuid()+1), done)
	c.Resumes(t, "the pause of another process, while it lasts")

	first, second := newPauser(t, "1m"), newPauser(t, "1m")
	first.asks(t, c.Identity(t))
	if answer := second.asks(t, c.Identity(t)); !strings.Contains(answer, "cannot pause") {
		t.Errorf("of a traced process: %q", answer)
	}
}

// A client may exec a set-user-id program between the check and the seizure. Its user is checked again when it has
// stopped, and then it is let go: the guard ends a pause after an error.
//
// Contract: G3
func TestAClientThatBecomesAnotherUsersDuringThePause(t *testing.T) {
	must.Root(t)
	c := newTestProgram(t, "--flip")
	noticed := false
	for began := time.Now(); !noticed && time.Since(began) < 6*soon; {
		p := newPauser(t, "1m")
		answer := p.asksOf(t, processOf(t, c.Process.Pid), flipUID)
		must.Have(t, answer == done || strings.Contains(answer, errForeign.Error()), "the answer is %q", answer)
		noticed = answer != done
		p.in.Close()
		_ = p.Wait()
	}
	must.Hold(t, noticed, "a process of another user is kept stopped")
}

// flipUID is the user as whom the process of flip runs half of the time.
const flipUID = 2001

// flip changes its effective user without end, as a client does that execs set-user-id programs.
func flip() {
	for {
		_ = unix.Setresuid(-1, flipUID, -1)
		_ = unix.Setresuid(-1, 0, -1)
	}
}

// churn starts threads that end at once, from several threads, without end. With an argument, a thread that is not the
// first execs the program again.
func churn() {
	for range 4 {
		go func() {
			for {
				done := make(chan bool)
				go func() {
					runtime.LockOSThread() // the thread ends with the goroutine
					close(done)
				}()
				<-done
			}
		}()
	}
	if os.Args[1] == "--exec" {
		go func() {
			runtime.LockOSThread()
			time.Sleep(2 * time.Millisecond)
			_ = unix.Exec("/proc/self/exe", os.Args, nil)
		}()
	}
	select {}
}

// newTestProgram starts a program of this test.
func newTestProgram(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", name)
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func processOf(t *testing.T, pid int) proc.Process {
	t.Helper()
	stat := must.Get(proc.ReadStat(pid))(t)
	return stat.Process
}

// running returns the threads of a process that are not stopped by a tracer.
func running(pid int) (found []string) {
	_ = proc.EachThread(pid, func(thread int) bool {
		if status, err := proc.ReadThread(pid, thread); err == nil && status.State != 't' && status.State != 'Z' && status.State != 'X' {
			found = append(found, fmt.Sprintf("%d: %c, traced by %d", thread, status.State, status.Tracer))
		}
		return true
	})
	return found
}

// A process whose threads start and end threads without end is stopped as a whole.
func TestAPauseOfThreadsWithoutEnd(t *testing.T) {
	for try := range 30 {
		c := newTestProgram(t, "--churn")
		p := newPauser(t, "1m")
		if answer := p.asks(t, processOf(t, c.Process.Pid)); answer != done {
			t.Fatalf("try %d: the answer is %q", try, answer)
		}
		if left := running(c.Process.Pid); len(left) > 0 {
			t.Fatalf("try %d: %q run on", try, left)
		}
		p.in.Close()
		_ = p.Wait()
		_ = c.Process.Kill()
	}
}

// A process whose threads exec programs without end is stopped too, or the pausing process hangs in the kernel until
// the guard ends it: the kernel lets no one trace a process whose exec waits for a thread that is traced already. No
// debugger is blamed.
func TestAPauseOfAProcessThatExecs(t *testing.T) {
	hung := 0
	for try := range 100 {
		c := newTestProgram(t, "--exec")
		p := newPauser(t, "1m")
		of := processOf(t, c.Process.Pid)
		time.Sleep(time.Duration(try%20) * 500 * time.Microsecond)
		killed := time.AfterFunc(ack+slack, func() { _ = p.Process.Kill() })
		fmt.Fprintln(p.in, of.PID, of.Start, os.Geteuid())
		answer, err := p.out.ReadString('\n')
		switch {
		case err != nil:
			hung++
		case strings.TrimSpace(answer) != done:
			t.Fatalf("try %d: the answer is %q", try, answer)
		}
		killed.Stop()
		_ = p.Process.Kill()
		_ = c.Process.Kill()
	}
	t.Logf("%d of 100 hung", hung)
}

// A thread that cannot be traced and that nothing else traces, as in the middle of an exec, is tried until a time, and
// no debugger is blamed. A thread of the kernel is always such a thread.
func TestAThreadThatCannotBeTracedNow(t *testing.T) {
	const kthreadd = 2
	if comm, err := os.ReadFile("/proc/2/comm"); err != nil || string(comm) != "kthreadd\n" || os.Geteuid() != 0 {
		t.Skip("no thread of the kernel can be seen")
	}
	tracer := tracer{stopped: map[int]bool{}}
	end := time.Now().Add(30 * time.Millisecond)
	if err := tracer.seizeAll(kthreadd, end); !errors.Is(err, errExecs) || time.Now().Before(end) {
		t.Errorf("%v before the end: %v", time.Until(end), err)
	}
}

// What cannot be checked stays not paused: the answer is an error, and the guard then ends the pause.
func TestAProcessThatCannotBeChecked(t *testing.T) {
	p := Target{proc.Process{PID: os.Getpid(), Start: 1}, 0}
	if err := p.check(); !errors.Is(err, errForeign) {
		t.Errorf("another process: %v", err)
	}
	p.PID = 1 << 30
	if err := p.check(); !gone(err) {
		t.Errorf("a process that has ended: %v", err)
	}
	var files unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	p.PID = os.Getpid()
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: files.Max}) // no file can be opened
	err := p.check()
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &files)
	must.Hold(t, err != nil && !gone(err) && !errors.Is(err, errForeign), "a process whose state cannot be read: %v", err)
}

// The pausing process ends with the guard, even if another process keeps its stdin open.
//
// Contract: G3
func TestAPauseEndsWithTheGuard(t *testing.T) {
	c := testproc.NewCounter(t)
	stdin, in, err1 := os.Pipe()
	out, stdout, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	defer in.Close() // this test is the other process
	guard := exec.Command("/bin/sh", "-c", `/proc/$PPID/exe --pause 1m <&3 & wait`)
	guard.Stdout, guard.ExtraFiles = stdout, []*os.File{stdin}
	must.OK(t, guard.Start())
	stdin.Close()
	stdout.Close()
	p := &pauser{guard, in, bufio.NewReader(out)}
	if answer := p.asks(t, c.Identity(t)); answer != done {
		t.Fatalf("the answer is %q", answer)
	}
	must.Hold(t, !c.Counts(), "a paused process counts")
	_ = guard.Process.Kill()
	_ = guard.Wait()
	c.Resumes(t, "after the guard's end")
}
