// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// answers asks a question that returns at once.
func (a *asker) answers(pid int) error {
	_, err := ask(a, pid, func(func()) (int, error) { return pid, nil })
	return err
}

// hangs asks a question that returns when the channel is closed.
func (a *asker) hangs(pid int, until chan struct{}) error {
	_, err := ask(a, pid, func(func()) (int, error) { <-until; return pid, nil })
	return err
}

// becomes waits until this many processes do not answer.
func (a *asker) becomes(t *testing.T, silent int) {
	t.Helper()
	for began := time.Now(); a.unanswered() != silent; time.Sleep(time.Millisecond) {
		if time.Since(began) > soon {
			t.Fatalf("%d processes do not answer: want %d", a.unanswered(), silent)
		}
	}
}

// A process that does not answer is not asked again until its question has returned. Others are asked.
func TestAskingASilentProcess(t *testing.T) { synctest.Test(t, testAskingASilentProcess) }

func testAskingASilentProcess(t *testing.T) {
	a, until := newAsker(), make(chan struct{})
	var nudges atomic.Int32
	a.nudge = func() { nudges.Add(1) }
	if err := a.hangs(1, until); !errors.Is(err, proc.ErrSilent) {
		t.Fatal(err)
	}
	if err := a.answers(1); !errors.Is(err, proc.ErrSilent) || errors.Is(err, errCrowd) {
		t.Errorf("a silent process is asked again: %v", err)
	}
	must.Note(t, a.answers(2))
	if a.unanswered() != 1 || a.returned.Load() || nudges.Load() != 0 {
		t.Errorf("%d silent, returned %v, %d nudges", a.unanswered(), a.returned.Load(), nudges.Load())
	}
	close(until)
	a.becomes(t, 0)
	if err := a.answers(1); err != nil || !a.returned.Load() || nudges.Load() != 1 {
		t.Errorf("%v, returned %v, %d nudges", err, a.returned.Load(), nudges.Load())
	}
}

// Many silent processes take a bounded time of one round. If there are too many, no process is asked.
func TestAskingManySilentProcesses(t *testing.T) {
	a, until := newAsker(), make(chan struct{})
	began := time.Now()
	fds := []int{0, 0}
	must.OK(t, unix.Pipe(fds))
	for pid := range maxSilent {
		_, err := ask(a, pid, func(func()) (int, error) { // waits in a system call, as for a process
			<-readOne(fds[0])
			<-until
			return 0, nil
		})
		if !errors.Is(err, proc.ErrSilent) {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 15*roundTime {
		t.Errorf("%d silent processes took %v", maxSilent, took)
	}
	if err := a.answers(maxSilent); !errors.Is(err, errCrowd) {
		t.Errorf("one more is asked: %v", err)
	}
	close(until)
	unix.Close(fds[1])
	a.becomes(t, 0)
	a.begin()
	must.Note(t, a.answers(maxSilent))
	unix.Close(fds[0])
}

// A late answer ends no thread. The kernel kills the pausing process, and a control program in the keeper of --own, when
// the thread ends that has started it.
func TestALateAnswerEndsNoThread(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so a late answer continues in this goroutine's thread
	a := newAsker()
	var children []proc.Process
	for range 10 {
		var fds [2]int
		must.OK(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
		if _, err := ask(a, 1, func(func()) (int, error) { <-readOne(fds[0]); return 0, nil }); !errors.Is(err, proc.ErrSilent) {
			t.Fatal(err)
		}
		child := exec.Command("/bin/sleep", "60")
		child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		must.OK(t, child.Start())
		defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
		stat := must.Get(proc.ReadStat(child.Process.Pid))(t)
		children = append(children, stat.Process)
		unix.Close(fds[1])
		for began := time.Now(); a.unanswered() > 0; { // without a sleep, which would let another thread continue
			must.Have(t, time.Since(began) <= soon, "the question does not return")
		}
		unix.Close(fds[0])
	}
	time.Sleep(50 * time.Millisecond)
	for _, child := range children {
		must.Hold(t, child.Running(), "a child has ended with the thread that started it")
	}
}

// readOne reads from a pipe in this goroutine's thread.
func readOne(fd int) chan struct{} {
	_, _ = unix.Read(fd, make([]byte, 1))
	done := make(chan struct{})
	close(done)
	return done
}

// A long answer is awaited as long as it makes progress, but no longer than a round.
func TestAskingForALongAnswer(t *testing.T) {
	slow := func(parts int) func(step func()) (int, error) {
		return func(step func()) (int, error) {
			for range parts {
				time.Sleep(answerTime - 1)
				step()
			}
			return parts, nil
		}
	}
	synctest.Test(t, func(t *testing.T) {
		a := newAsker()
		if got, err := ask(a, 10, slow(5)); err != nil || got != 5 {
			t.Errorf("an answer that makes progress: %d, %v", got, err)
		}
		a.begin()
		began := time.Now()
		if _, err := ask(a, 2, slow(20*int(roundTime/answerTime))); !errors.Is(err, proc.ErrSilent) {
			t.Errorf("an answer without end is awaited: %v", err)
		}
		if took := time.Since(began); took < roundTime || took > roundTime+answerTime {
			t.Errorf("it was awaited for %v", took)
		}
		a.becomes(t, 0)
	})
}

// A process that cannot be watched is counted once, and each cause has one line. Those that have ended do not count.
func TestProcessesThatCannotBeWatched(t *testing.T) {
	r := stillGuard(t, 0)
	for range 3 {
		r.noteUnguarded(11, fmt.Errorf("cannot open a pidfd: %w", unix.EMFILE), false)
		r.noteUnguarded(12, fmt.Errorf("cannot open a pidfd: %w", unix.EMFILE), false)
		r.noteUnguarded(13, fmt.Errorf("cannot open a pidfd: %w", unix.EPERM), false)
		r.noteUnguarded(14, unix.ESRCH, false)
		r.noteUnguarded(15, proc.ErrSilent, false)
		r.noteUnguarded(16, errNotOurs, false)
		r.noteUnguarded(17, nil, false)
		r.noteUnguarded(18, fmt.Errorf("cannot list its open files: %w", unix.ENOENT), false)
	}
	r.noteUnguarded(19, errCrowd, false)
	for pid := 20; pid < 30; pid++ {
		r.noteUnguarded(pid, fmt.Errorf("cause %d", pid), false)
	}
	want := []lease.Unguarded{
		{Cause: "cannot open a pidfd: too many open files", Processes: 2},
		{Cause: "cannot open a pidfd: operation not permitted", Processes: 1},
		{Cause: errCrowd.Error(), Processes: 1}, {Cause: "cause 20", Processes: 1}, {Cause: "other causes", Processes: 9},
	}
	if got := fmt.Sprint(r.state.Unguarded); got != fmt.Sprint(want) {
		t.Errorf("%s\nwant %v", got, want)
	}
	if len(r.logged) != maxCauses+1 {
		t.Errorf("%d lines", len(r.logged))
	}
}

// A guard keeps descriptors for its own work.
func TestPidfdsAtTheLimit(t *testing.T) {
	r := stillGuard(t, 0)
	var old unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	first := must.Get(r.kernel.pidfd(os.Getpid()))(t)
	unix.Close(first)
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) })
	must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(first) * 4 / 3, Max: old.Max}))
	if fd, err := r.kernel.pidfd(os.Getpid()); !errors.Is(err, unix.EMFILE) {
		t.Errorf("%d, %v", fd, err)
	}
	must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	again, err := r.kernel.pidfd(os.Getpid())
	must.Hold(t, err == nil && again == first, "%d, %v: want %d, because none is left open", again, err, first)
	unix.Close(again)
}

// A guard tells before each wait by when it acts again.
func TestPromises(t *testing.T) {
	r := newTestGuard(t, 0)
	promises := make(chan time.Time, 1000)
	r.promised = func(by time.Time) {
		select {
		case promises <- by:
		default:
		}
	}
	r.runs()
	for range 3 {
		select {
		case by := <-promises:
			if ahead := time.Until(by); ahead > rareScan || ahead < -soon {
				t.Errorf("it acts again in %v", ahead)
			}
		case <-time.After(rareScan + soon):
			t.Fatal("no promise")
		}
		r.events.nudge()
	}
}

// A dismissed process that has ended is forgotten, and one that runs is not.
func TestEnded(t *testing.T) {
	r := stillGuard(t, 0)
	self := must.Get(proc.Current())(t)
	reused, none := proc.Process{PID: self.PID, Start: 1}, proc.Process{PID: 1 << 22, Start: 1}
	must.Hold(t, !r.kernel.ended(self) && r.kernel.ended(reused) && r.kernel.ended(none), "wrong")
	until := make(chan struct{})
	defer close(until)
	_ = r.kernel.asks.hangs(self.PID, until)
	must.Hold(t, !r.kernel.ended(proc.Process{PID: self.PID, Start: 1}), "a process that does not answer counts as ended")
}
