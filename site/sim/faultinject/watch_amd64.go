// SPDX-License-Identifier: Apache-2.0

package faultinject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// tracers is how many programs are traced at a time.
const tracers = 16

// work is for the tracers' threads.
var work = make(chan func())

// The kernel knows a tracer as a thread, and its wait reports every child that this thread ever made. A thread that has
// started something for somebody else would take that from them, so tracers have threads of their own from the start.
func init() {
	var ready sync.WaitGroup
	for range tracers {
		ready.Add(1)
		go func() {
			runtime.LockOSThread()
			ready.Done()
			for do := range work {
				do()
			}
		}()
	}
	ready.Wait()
}

// traced starts the program and watches it to its end.
func traced(ctx context.Context, argv, env []string, out *os.File, plan Plan) (status syscall.WaitStatus, err error) {
	done := make(chan struct{})
	work <- func() {
		defer close(done)
		status, err = start(ctx, argv, env, out, plan)
	}
	<-done
	return status, err
}

func start(ctx context.Context, argv, env []string, out *os.File, plan Plan) (syscall.WaitStatus, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir: "/", Env: env, Files: []uintptr{null.Fd(), out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if errors.Is(err, syscall.EPERM) {
		return 0, fmt.Errorf("%w: this place forbids ptrace: give the container CAP_SYS_PTRACE, and a seccomp profile that allows it", err)
	}
	if err != nil {
		return 0, err
	}
	w := newWatch(pid, plan)
	stop := context.AfterFunc(ctx, w.end)
	defer stop()
	return w.run()
}

// watch is one traced program.
type watch struct {
	plan    Plan
	pid     int
	threads map[int]*thread
	status  syscall.WaitStatus // the program's, when it has ended
	over    bool               // no further call is asked about

	mu     sync.Mutex // guards what end reads from another thread
	reaped bool
}

// thread is a traced thread of the program or of a child.
type thread struct {
	process int
	inside  bool    // between a call's entry and its exit
	effect  *Effect // what it is doing, nil for something harmless
	errno   syscall.Errno
}

func newWatch(pid int, plan Plan) *watch {
	return &watch{plan: plan, pid: pid, threads: map[int]*thread{pid: {process: pid}}}
}

// wanted are the stops that are asked for. A tracer that dies takes the program along.
const wanted = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK |
	unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC

// mine makes wait4 leave the children of this process's other threads alone.
const mine = unix.WALL | unix.WNOTHREAD

// run goes from stop to stop until nothing is left to trace.
func (w *watch) run() (syscall.WaitStatus, error) {
	var first syscall.WaitStatus
	if _, err := wait(w.pid, &first); err != nil {
		return 0, err
	}
	if !first.Stopped() {
		return 0, fmt.Errorf("it ended before its first call: %v", first)
	}
	if err := unix.PtraceSetOptions(w.pid, wanted); err != nil {
		return 0, err
	}
	w.resume(w.pid, 0)
	for {
		var status syscall.WaitStatus
		tid, err := wait(-1, &status)
		if errors.Is(err, unix.ECHILD) {
			return w.status, nil
		}
		if err != nil {
			return 0, err
		}
		if err := w.stopped(tid, status); err != nil {
			w.end()
			return 0, err
		}
	}
}

// wait also takes a stop that a signal to the tracer interrupts.
func wait(pid int, status *syscall.WaitStatus) (int, error) {
	for {
		tid, err := syscall.Wait4(pid, status, mine, nil)
		if !errors.Is(err, unix.EINTR) {
			return tid, err
		}
	}
}

// end kills the program, which is this process's child and not reaped, so its number is its own. Children that are
// still watched go too.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.reaped {
		_ = unix.Kill(w.pid, unix.SIGKILL)
	}
}

// stopped handles one report of the kernel's.
func (w *watch) stopped(tid int, status syscall.WaitStatus) error {
	if status.Exited() || status.Signaled() {
		w.gone(tid, status)
		return nil
	}
	t := w.threads[tid]
	if t == nil { // the first stop of a thread or child, before or after its maker's report of it
		w.threads[tid] = &thread{process: processOf(tid)}
		w.resume(tid, 0)
		return nil
	}
	switch signal := status.StopSignal(); {
	case signal == unix.SIGTRAP|0x80:
		return w.call(tid, t)
	case signal == unix.SIGTRAP && status.TrapCause() > 0:
		w.event(tid, t, status.TrapCause())
	case signal == unix.SIGTRAP:
		w.resume(tid, 0)
	default:
		w.resume(tid, int(signal))
	}
	return nil
}

func (w *watch) gone(tid int, status syscall.WaitStatus) {
	delete(w.threads, tid)
	if tid == w.pid {
		w.mu.Lock()
		w.reaped = true
		w.mu.Unlock()
		w.status = status
	}
}

// event is a new thread, a new child, or a child that has become another program.
func (w *watch) event(tid int, t *thread, cause int) {
	switch cause {
	case unix.PTRACE_EVENT_EXEC:
		t.inside = false
		if t.process != w.pid {
			// The kernel has changed the thread's number to the process's if it was another.
			delete(w.threads, tid)
			w.happened(Effect{Call: "execve", What: commandLine(tid), Child: true})
			_ = unix.PtraceDetach(tid)
			return
		}
	case unix.PTRACE_EVENT_FORK, unix.PTRACE_EVENT_VFORK, unix.PTRACE_EVENT_CLONE:
		if t.effect != nil { // not a thread
			w.happened(*t.effect)
			t.effect = nil
		}
	}
	w.resume(tid, 0)
}

// call is the entry of a system call or its exit.
func (w *watch) call(tid int, t *thread) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err != nil {
		return ignoreGone(err)
	}
	t.inside = !t.inside
	var err error
	if t.inside {
		err = w.enter(tid, t, &regs)
	} else {
		err = w.leave(tid, t, &regs)
	}
	w.resume(tid, 0)
	return ignoreGone(err)
}

func (w *watch) enter(tid int, t *thread, regs *unix.PtraceRegs) error {
	if t.effect, t.errno = nil, 0; w.over {
		return nil
	}
	effect, ok := decode(tid, regs)
	if !ok {
		return nil
	}
	effect.Child = t.process != w.pid
	t.effect = &effect
	if w.plan.Fail == nil {
		return nil
	}
	if t.errno = w.plan.Fail(effect); t.errno == 0 {
		return nil
	}
	skip(regs)
	w.over = w.plan.Once
	return unix.PtraceSetRegs(tid, regs)
}

func (w *watch) leave(tid int, t *thread, regs *unix.PtraceRegs) error {
	effect := t.effect
	t.effect = nil
	switch {
	case effect == nil:
	case t.errno != 0:
		answer(regs, t.errno)
		t.errno = 0
		return unix.PtraceSetRegs(tid, regs)
	case succeeded(regs):
		w.happened(*effect)
	}
	return nil
}

// happened asks whether the program is to die now.
func (w *watch) happened(effect Effect) {
	if w.plan.Kill == nil || !w.plan.Kill(effect) {
		return
	}
	w.end()
	if w.plan.Killed != nil {
		w.plan.Killed()
	}
}

// resume lets a thread go on to its next call, or beyond where nothing is asked any more but the end of this one. One
// that has gone meanwhile says so to wait.
func (w *watch) resume(tid, signal int) {
	if t := w.threads[tid]; w.over && (t == nil || t.errno == 0) {
		_ = unix.PtraceCont(tid, signal)
		return
	}
	_ = unix.PtraceSyscall(tid, signal)
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// processOf is the process of a thread.
func processOf(tid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	_, rest, _ := strings.Cut(string(status), "\nTgid:")
	line, _, _ := strings.Cut(rest, "\n")
	process, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return tid
	}
	return process
}

func commandLine(pid int) string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
}
