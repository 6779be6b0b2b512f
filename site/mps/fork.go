// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// image is all that a new process needs to become a program as a job's user, made before the fork: the child may
// allocate nothing.
type image struct {
	path, dir *byte
	argv, env []*byte
	files     [3]int // its stdin, stdout and stderr
	group     int    // the file by which the child joins its control group, -1 for none
	itself    byte   // what it writes there
	report    int    // where the child writes why it could not become the program
	uid, gid  uint32
	groups    []uint32
	nGroups   int
	asIs      bool      // the caller is the user already, and may become nobody else
	parent    uintptr   // its pid, to see in the child whether it has died meanwhile
	mask      sigset    // the parent's, while the child is made
	none      sigset    // the program's: no signal is blocked
	standard  sigaction // SIG_DFL
	cause     uint64    // errno on its way through the pipe, with notJoined
}

type sigset uint64

// sigaction begins with the handler on every architecture that Go and CUDA share; the rest is zero here.
type sigaction struct {
	handler uintptr
	rest    [7]uintptr
}

const (
	lastSignal  = 64
	sigsetBytes = 8
	childFailed = 125
	maxFiles    = 4096 // closed one by one where the kernel is older than close_range (5.9)

	notJoined = 1 << 32 // the error was that of joining the control group
)

// fork starts a program as the job's user, in a session of its own, at /, with no signal blocked or ignored and no file
// but the three; it dies with its parent, so that nobody makes a daemon that no epilog waits for. It returns with the
// child's pid at once; launched says later whether it became the program.
//
// It does not use os/exec, whose child shares the parent's memory and holds its thread until the program is there: in
// that time the child has the user's uid already, so the user could stop it, and with it this process: for ever, since Go
// cannot collect garbage meanwhile, and with our locks open in the child. Here the child has a copy of the memory, which
// the kernel lets no user look into, and nobody waits for it but by a deadline.
//
// The child dies when the thread does that forked. Go ends a thread only where a goroutine ends that is locked to it;
// there is none here.
func fork(job lease.Job, group, path string, argv, env []string, files [3]*os.File) (pid int, report *os.File, err error) {
	im, err := newImage(job, path, argv, env)
	if err != nil {
		return 0, nil, err
	}
	if group != "" && !im.asIs {
		joins, err := cgroup.Join(group)
		if err != nil {
			return 0, nil, err
		}
		defer joins.Close()
		im.group = int(joins.Fd())
	}
	report, theirs, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer theirs.Close()
	for i, file := range files {
		im.files[i] = int(file.Fd())
	}
	im.report = int(theirs.Fd())
	child, errno := im.fork()
	runtime.KeepAlive(im)
	if errno != 0 {
		report.Close()
		return 0, nil, fmt.Errorf("cannot fork: %w", errno)
	}
	return int(child), report, nil
}

func newImage(job lease.Job, path string, argv, env []string) (*image, error) {
	p, err1 := syscall.BytePtrFromString(path)
	dir, err2 := syscall.BytePtrFromString("/")
	a, err3 := syscall.SlicePtrFromStrings(argv)
	e, err4 := syscall.SlicePtrFromStrings(env)
	groups := append(append([]uint32{}, job.Groups...), job.GID) // one more than counts, so that it has an address
	return &image{
		path: p, dir: dir, argv: a, env: e, uid: job.UID, gid: job.GID, groups: groups, nGroups: len(job.Groups),
		asIs: os.Geteuid() != 0, parent: uintptr(os.Getpid()), group: -1, itself: '0',
	}, errors.Join(err1, err2, err3, err4)
}

// launched is nil once the child is the program, else why it could not become it. A child that was killed before that
// reads as one that became it: its status says the rest.
func launched(report *os.File) error {
	var word [8]byte
	n, err := io.ReadFull(report, word[:])
	switch {
	case n == len(word):
		cause := binary.NativeEndian.Uint64(word[:])
		if cause&notJoined != 0 {
			return fmt.Errorf("cannot join control group: %w", syscall.Errno(cause&^notJoined))
		}
		return syscall.Errno(cause)
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
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
		im.exec()
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&im.mask)), 0, sigsetBytes, 0, 0)
	return pid, errno
}

// exec runs in the child and does not return.
//
//go:nosplit
//go:norace
//go:noinline
func (im *image) exec() {
	for signal := uintptr(1); signal <= lastSignal; signal++ {
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(&im.standard)), 0, sigsetBytes, 0, 0)
	}
	errno := im.prepare()
	if errno == 0 {
		syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&im.none)), 0, sigsetBytes, 0, 0)
		_, _, errno = syscall.RawSyscall6(unix.SYS_EXECVE, uintptr(unsafe.Pointer(im.path)), uintptr(unsafe.Pointer(&im.argv[0])), uintptr(unsafe.Pointer(&im.env[0])), 0, 0, 0)
	}
	im.cause |= uint64(errno)
	syscall.RawSyscall6(unix.SYS_WRITE, uintptr(im.report), uintptr(unsafe.Pointer(&im.cause)), 8, 0, 0, 0)
	for {
		syscall.RawSyscall6(unix.SYS_EXIT_GROUP, childFailed, 0, 0, 0, 0, 0)
	}
}

// prepare makes the child what the program is to be. It joins its control group first, and the files go before the uid
// changes: from then on the user may hold it there.
//
//go:nosplit
//go:norace
//go:noinline
func (im *image) prepare() syscall.Errno {
	if _, _, errno := syscall.RawSyscall6(unix.SYS_SETSID, 0, 0, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	if im.group >= 0 {
		if _, _, errno := syscall.RawSyscall6(unix.SYS_WRITE, uintptr(im.group), uintptr(unsafe.Pointer(&im.itself)), 1, 0, 0, 0); errno != 0 {
			im.cause = notJoined
			return errno
		}
	}
	for i := uintptr(0); i < 3; i++ {
		if _, _, errno := syscall.RawSyscall6(unix.SYS_DUP3, uintptr(im.files[i]), i, 0, 0, 0, 0); errno != 0 {
			return errno
		}
	}
	im.closeRest()
	if !im.asIs {
		if errno := im.change(); errno != 0 {
			return errno
		}
	}
	if _, _, errno := syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	if parent, _, _ := syscall.RawSyscall6(unix.SYS_GETPPID, 0, 0, 0, 0, 0, 0); parent != im.parent {
		return syscall.ESRCH
	}
	_, _, errno := syscall.RawSyscall6(unix.SYS_CHDIR, uintptr(unsafe.Pointer(im.dir)), 0, 0, 0, 0, 0)
	return errno
}

// change makes the child the user's.
//
//go:nosplit
//go:norace
//go:noinline
func (im *image) change() syscall.Errno {
	if _, _, errno := syscall.RawSyscall6(unix.SYS_SETGROUPS, uintptr(im.nGroups), uintptr(unsafe.Pointer(&im.groups[0])), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	if _, _, errno := syscall.RawSyscall6(unix.SYS_SETRESGID, uintptr(im.gid), uintptr(im.gid), uintptr(im.gid), 0, 0, 0); errno != 0 {
		return errno
	}
	_, _, errno := syscall.RawSyscall6(unix.SYS_SETRESUID, uintptr(im.uid), uintptr(im.uid), uintptr(im.uid), 0, 0, 0)
	return errno
}

// closeRest closes every file but the first three and the report.
//
//go:nosplit
//go:norace
//go:noinline
func (im *image) closeRest() {
	report := uintptr(im.report)
	_, _, errno := syscall.RawSyscall6(unix.SYS_CLOSE_RANGE, 3, report-1, 0, 0, 0, 0)
	if errno == 0 {
		_, _, errno = syscall.RawSyscall6(unix.SYS_CLOSE_RANGE, report+1, uintptr(^uint32(0)), 0, 0, 0, 0)
	}
	if errno == 0 {
		return
	}
	for fd := uintptr(3); fd < maxFiles; fd++ {
		if fd != report {
			syscall.RawSyscall6(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0)
		}
	}
}
