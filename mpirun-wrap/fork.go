package mpirunwrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// image is all that a new process needs to become a program, made before the fork: the child may allocate nothing.
type image struct {
	path      *byte
	argv, env []*byte
	parent    uintptr     // its pid, to see in the child whether it has died meanwhile
	report    [2]int      // pipe by which the child says why it could not become the program
	mask      sigset      // the parent's signal mask, which the program gets
	ignored   sigaction   // SIG_IGN
	standard  sigaction   // SIG_DFL
	present   sigaction   // what a signal had
	cause     [8]byte     // errno on its way through the pipe
	parentEnd unix.Signal // sent to the program when its wrapper dies
}

type sigset uint64

// sigaction begins with the handler on every architecture that Go and CUDA share; the rest is zero here.
type sigaction struct {
	handler uintptr
	rest    [7]uintptr
}

const (
	sigIgnore   = 1
	lastSignal  = 64
	sigsetBytes = 8
	childFailed = 125
)

// fork starts a program in the wrapper's own process group and session, with SIGTERM and SIGINT ignored, so that a
// signal to the whole group does not end it in mid-kernel, and with the wrapper's other dispositions, its mask and its
// limits. The error is a *ProgramError where the program could not be executed.
//
// It does not use syscall.ForkExec: that has no way to change a disposition in the child, so the wrapper itself would
// have to ignore both signals around it, and one that comes in this moment would be lost.
//
// The program gets SIGKILL when its parent dies, which is the thread that forked. Go ends a thread only where a goroutine
// ends that is locked to it; there is none here.
func fork(path string, argv, env []string) (pid int, err error) {
	restoreFileLimit()
	im, err := newImage(path, argv, env)
	if err != nil {
		return 0, &ProgramError{notExecutable, fmt.Errorf("cannot run %s: %w", path, err)}
	}
	syscall.ForkLock.Lock()
	err = unix.Pipe2(im.report[:], unix.O_CLOEXEC)
	if err != nil {
		syscall.ForkLock.Unlock()
		return 0, fmt.Errorf("cannot start %s: %w", path, err)
	}
	child, errno := im.fork()
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(im)
	unix.Close(im.report[1])
	defer unix.Close(im.report[0])
	if errno != 0 {
		return 0, fmt.Errorf("cannot start %s: %w", path, errno)
	}
	if cause := im.failure(); cause != 0 {
		_, _ = unix.Wait4(int(child), nil, 0, nil)
		code := notExecutable
		if cause == unix.ENOENT {
			code = notFound
		}
		return 0, &ProgramError{code, fmt.Errorf("cannot run %s: %w", path, cause)}
	}
	return int(child), nil
}

// restoreFileLimit undoes what Go's syscall package does at the start of every program: it raises the soft limit of open
// files and keeps the old one to itself, for syscall.Exec and ForkExec to restore. An Exec that cannot succeed is the
// way to have it back: it comes to restoring and no further.
func restoreFileLimit() {
	_ = syscall.Exec("", []string{""}, nil)
}

func newImage(path string, argv, env []string) (*image, error) {
	p, err1 := syscall.BytePtrFromString(path)
	a, err2 := syscall.SlicePtrFromStrings(argv)
	e, err3 := syscall.SlicePtrFromStrings(env)
	im := &image{path: p, argv: a, env: e, parent: uintptr(os.Getpid()), parentEnd: unix.SIGKILL}
	im.ignored.handler = sigIgnore
	return im, errors.Join(err1, err2, err3)
}

// failure is why the child could not become the program; 0 where it could: the pipe closes without a word then.
func (im *image) failure() syscall.Errno {
	var word [8]byte
	for {
		n, err := unix.Read(im.report[0], word[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != len(word) {
			return 0
		}
		return syscall.Errno(binary.NativeEndian.Uint64(word[:]))
	}
}

// fork clones the process. What the child runs until it is another program may not grow the stack, allocate, or meet a
// signal: Go's handlers would run in a process that has one thread of the runtime's many.
//
//go:nosplit
//go:norace
//go:noinline
func (im *image) fork() (uintptr, syscall.Errno) {
	all := ^sigset(0)
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&im.mask)), sigsetBytes, 0, 0)
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		im.become()
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&im.mask)), 0, sigsetBytes, 0, 0)
	return pid, errno
}

// become runs in the child and does not return.
//
//go:nosplit
//go:norace
//go:noinline
func (im *image) become() {
	im.dispose()
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(im.parentEnd), 0, 0, 0, 0)
	parent, _, _ := syscall.RawSyscall6(unix.SYS_GETPPID, 0, 0, 0, 0, 0, 0)
	if parent == im.parent {
		syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&im.mask)), 0, sigsetBytes, 0, 0)
		_, _, errno := syscall.RawSyscall6(unix.SYS_EXECVE, uintptr(unsafe.Pointer(im.path)), uintptr(unsafe.Pointer(&im.argv[0])), uintptr(unsafe.Pointer(&im.env[0])), 0, 0, 0)
		*(*uint64)(unsafe.Pointer(&im.cause)) = uint64(errno)
		syscall.RawSyscall6(unix.SYS_WRITE, uintptr(im.report[1]), uintptr(unsafe.Pointer(&im.cause)), 8, 0, 0, 0)
	}
	for {
		syscall.RawSyscall6(unix.SYS_EXIT_GROUP, childFailed, 0, 0, 0, 0, 0)
	}
}

// dispose gives every signal its disposition in the program, while all are blocked: what came for the program meanwhile
// waits until then. Dispositions that are ignored already stay so.
//
//go:nosplit
//go:norace
//go:noinline
func (im *image) dispose() {
	for signal := uintptr(1); signal <= lastSignal; signal++ {
		wanted := &im.standard
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, signal, 0, uintptr(unsafe.Pointer(&im.present)), sigsetBytes, 0, 0)
		if im.present.handler == sigIgnore {
			continue
		}
		if signal == uintptr(unix.SIGTERM) || signal == uintptr(unix.SIGINT) {
			wanted = &im.ignored
		}
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(wanted)), 0, sigsetBytes, 0, 0)
	}
}
