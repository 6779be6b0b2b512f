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

// tracers is how many programs can be traced at the same time.
const tracers = 16

// work passes functions to the threads of the tracers.
var work = make(chan func())

// For the kernel a tracer is a thread, and its wait reports every child that this thread ever made. A thread that
// starts processes for other code would take their reports. So tracers have their own threads from the start.
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

// traced starts the program and traces it to its end.
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
		return 0, fmt.Errorf("%w: ptrace is forbidden here: give the container CAP_SYS_PTRACE, and a seccomp profile that allows it", err)
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
	over    bool               // no further call is shown to the plan

	mu     sync.Mutex // guards reaped, which end reads from another thread
	reaped bool
}

// thread is a traced thread of the program or of a child.
type thread struct {
	process int
	inside  bool    // between a call's entry and its exit
	effect  *Effect // the call in progress, nil if it is harmless
	errno   syscall.Errno
}

func newWatch(pid int, plan Plan) *watch {
	return &watch{plan: plan, pid: pid, threads: map[int]*thread{pid: {process: pid}}}
}

// wanted are the stops that the tracer asks for. If the tracer dies, the kernel kills the program.
const wanted = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK |
	unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC

// mine makes wait4 ignore the children of this process's other threads.
const mine = unix.WALL | unix.WNOTHREAD

// run handles one stop after the other until nothing is left to trace.
func (w *watch) run() (syscall.WaitStatus, error) {
	var first syscall.WaitStatus
	if _, err := wait4(w.pid, &first); err != nil {
		return 0, err
	}
	if !first.Stopped() {
		return 0, fmt.Errorf("the program ended before its first call: %v", first)
	}
	if err := unix.PtraceSetOptions(w.pid, wanted); err != nil {
		return 0, err
	}
	w.resume(w.pid, 0)
	for {
		var status syscall.WaitStatus
		tid, err := wait4(-1, &status)
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

// wait waits again if a signal to the tracer interrupts it.
func wait4(pid int, status *syscall.WaitStatus) (int, error) {
	for {
		tid, err := syscall.Wait4(pid, status, mine, nil)
		if !errors.Is(err, unix.EINTR) {
			return tid, err
		}
	}
}

// end kills the program. The program is a child of this process and not reaped, so its pid cannot belong to another
// process. Children that are still traced die too.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.reaped {
		_ = unix.Kill(w.pid, unix.SIGKILL)
	}
}

// stopped handles one report of the kernel.
func (w *watch) stopped(tid int, status syscall.WaitStatus) error {
	if status.Exited() || status.Signaled() {
		w.gone(tid, status)
		return nil
	}
	t := w.threads[tid]
	if t == nil { // the first stop of a thread or child, before or after the report of the thread that made it
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

// event handles a new thread, a new child, or a child that has executed another program.
func (w *watch) event(tid int, t *thread, cause int) {
	switch cause {
	case unix.PTRACE_EVENT_EXEC:
		t.inside = false
		if t.process != w.pid {
			// The thread has the process's number now: the kernel has changed another number to it.
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

// call handles the entry of a system call or its exit.
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

// happened asks the plan whether the program must die now, and kills it.
func (w *watch) happened(effect Effect) {
	if w.plan.Kill == nil || !w.plan.Kill(effect) {
		return
	}
	w.end()
	if w.plan.Killed != nil {
		w.plan.Killed()
	}
}

// resume lets a thread continue to its next call. If nothing more is asked of the plan, the thread runs freely,
// except that a failed call is first brought to its end. A thread that has ended is reported by wait.
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

// processOf returns the process of a thread.
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
