// SPDX-License-Identifier: Apache-2.0

// Package pause stops the neighbours of a dead client by ptrace, in a process of its own (docs/decisions.md, 23):
//
//	guard                     guard --pause 6s
//	  |--- "pid start uid" --->| PTRACE_SEIZE and PTRACE_INTERRUPT of each thread
//	  |<-- "paused" -----------| all threads have stopped
//	  |   (the GPU gets idle)
//	  |--- end of stdin ------>| exits: the kernel continues all threads
//
// When a tracer ends, the kernel detaches it and continues what it has stopped. So nothing stays stopped, whatever
// dies. A timer of the kernel kills the tracer when its time is over. The neighbours get no signal, their parents are
// not told, and a process that a user has stopped stays stopped.
package pause

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

const (
	// ack is how long the pausing process waits until all threads have stopped. A thread that is in the kernel for
	// longer, as in vfork or in a file system that does not answer, stops before it runs code of its program again.
	ack = 500 * time.Millisecond
	// slack is the time after the policy's limit at which the kernel kills the pausing process. The guard itself
	// ends a pause at the limit.
	slack = time.Second
	// done is the answer of the pausing process.
	done = "paused"
	// reapEvery is the time between two checks for processes that have ended during the pause.
	reapEvery = 50 * time.Millisecond
	// maxThreads limits the threads of one process that are paused.
	maxThreads = 16384
)

// Run stops processes until its stdin ends. Each line of stdin is "PID START UID": the process with this effective
// uid. A process that is another one by now, or runs as another user, is not stopped. It answers a line on stdout for each
// line. The kernel kills this process after limit, and continues the processes when this process ends, however it
// ends.
func Run(limit time.Duration) error {
	runtime.LockOSThread() // only the thread that traces may ask for more
	if err := killAfter(limit + slack); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("cannot follow the guard's end: %w", err)
	}
	t := tracer{stopped: map[int]bool{}}
	lines := bufio.NewReader(os.Stdin)
	for {
		// The parent of a traced process that is killed learns of its end when this process has waited for it.
		for lines.Buffered() == 0 && wait.Readable(0, reapEvery) != nil {
			for t.wait() {
			}
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil // the end of the pause
		}
		answer := done
		var p Target
		if _, err := fmt.Sscan(line, &p.PID, &p.Start, &p.UID); err != nil {
			answer = fmt.Sprintf("cannot read %.40q: %v", line, err)
		} else if err := t.pause(p); err != nil {
			answer = words.OneLine(err)
		}
		fmt.Println(answer)
	}
}

// killAfter makes the kernel kill this process after a time, even if it hangs in a system call that can be killed.
func killAfter(limit time.Duration) error {
	event := struct {
		value  uint64
		signal int32
		notify int32
		_      [48]byte
	}{signal: int32(unix.SIGKILL)} // notify 0 is SIGEV_SIGNAL
	var timer int32
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&timer))); errno != 0 {
		return fmt.Errorf("cannot limit the pause: %w", errno)
	}
	when := struct{ interval, value unix.Timespec }{value: unix.NsecToTimespec(int64(limit))}
	if _, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(timer), 0, uintptr(unsafe.Pointer(&when)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("cannot limit the pause: %w", errno)
	}
	return nil
}

// tracer stops threads.
type tracer struct {
	stopped map[int]bool // by thread ID; false until the thread has stopped
}

// Target is a process that is to stop, with its user. A client may exec a set-user-id program and keep its files open.
// That program is root's, and must not stop.
type Target struct {
	proc.Process
	UID uint32
}

var errForeign = errors.New("it is another process or runs as another user now")

// check returns errForeign if the pid is another process's by now, or the process runs as another user. Any other
// error means that this cannot be told, or that the process has ended.
func (p Target) check() error {
	stat, err1 := proc.ReadStat(p.PID)
	status, err2 := proc.ReadStatus(p.PID)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if stat.Process != p.Process || status.UIDs[1] != p.UID {
		return errForeign
	}
	return nil
}

// gone reports whether an error means that a process or thread has ended.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// pause stops all threads of a process, and returns when they have stopped. After an error, the guard ends the pause,
// so that no process stays stopped of which it is not known whose it is.
func (t *tracer) pause(p Target) error {
	switch err := p.check(); {
	case gone(err) || errors.Is(err, errForeign):
		return nil
	case err != nil:
		return fmt.Errorf("cannot pause process %d: %w", p.PID, err)
	}
	end := time.Now().Add(ack)
	if err := t.seizeAll(p.PID, end); err != nil {
		return err
	}
	for slices.Contains(slices.Collect(maps.Values(t.stopped)), false) && time.Now().Before(end) {
		if !t.wait() {
			time.Sleep(time.Millisecond)
		}
		for t.wait() && time.Now().Before(end) { // thousands stop at once, and a look at all costs as many steps
		}
	}
	// The process is traced now, so its pid is not used again before this process has waited for it.
	if err := p.check(); err != nil && !gone(err) {
		return fmt.Errorf("cannot pause process %d: %w", p.PID, err)
	}
	return nil
}

// seizeAll traces all threads of a process and asks them to stop. It lists them again until no thread is new, because a
// thread may start another one before it stops. A thread that execs takes the place of the first one, and cannot be
// traced at that moment: it is tried again until a time.
func (t *tracer) seizeAll(pid int, end time.Time) error {
	for {
		found, err := t.seizeNew(pid)
		switch {
		case errors.Is(err, errExecs) && time.Now().Before(end):
			time.Sleep(time.Millisecond)
		case err != nil || !found:
			return err
		case time.Now().After(end):
			return fmt.Errorf("cannot pause process %d: it starts threads without end", pid)
		}
	}
}

var errExecs = errors.New("a thread that nothing else traces cannot be traced, as in the middle of an exec")

func (t *tracer) seizeNew(pid int) (found bool, err error) {
	threads := 0
	listed := proc.EachThread(pid, func(thread int) bool {
		threads++
		if _, known := t.stopped[thread]; known {
			return threads < maxThreads
		}
		var new bool
		new, err = t.seizeOne(pid, thread)
		found = found || new
		return err == nil && threads < maxThreads
	})
	if !gone(listed) {
		err = errors.Join(err, listed)
	}
	if err != nil {
		return found, fmt.Errorf("cannot pause process %d: %w", pid, err)
	}
	return found, nil
}

// seizeOne seizes a thread. It reports whether the thread is new and traced.
func (t *tracer) seizeOne(pid, thread int) (found bool, err error) {
	err = t.seize(thread)
	if err == nil {
		return true, nil
	}
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	status, err2 := proc.ReadThread(pid, thread)
	switch {
	case err2 != nil, status.State == 'Z', status.State == 'X': // the first thread may have ended before the others
		return false, nil
	case status.Tracer == unix.Gettid(): // a traced thread has just started it
		t.stopped[thread] = false
		return true, nil
	}
	if status.Tracer == 0 && errors.Is(err, unix.EPERM) {
		return false, errExecs
	}
	return false, fmt.Errorf("%w: process %d traces it", err, status.Tracer)
}

func (t *tracer) seize(thread int) error {
	// A new thread of a traced thread is traced from its first instruction.
	const options = unix.PTRACE_O_TRACECLONE
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(thread), 0, options, 0, 0); errno != 0 {
		return errno
	}
	t.stopped[thread] = false
	if err := unix.PtraceInterrupt(thread); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// wait notes one thread that has stopped or ended.
func (t *tracer) wait() bool {
	var status unix.WaitStatus
	thread, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOHANG, nil)
	if err != nil || thread <= 0 {
		return false
	}
	t.stopped[thread] = true // one that has ended does nothing, too
	return true
}
