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

// image holds everything that a new process needs to become a program as a job's user. It is made before the fork,
// because the child may not allocate.
type image struct {
	path, dir *byte
	argv, env []*byte
	files     [3]int    // its stdin, stdout and stderr
	group     int       // descriptor of its control group's cgroup.procs, -1 for none
	clone     cloneArgs // with the group, for a kernel that makes the child in it
	itself    byte      // what the child writes there
	report    int       // descriptor to which the child writes why it could not exec
	uid, gid  uint32
	groups    []uint32
	nGroups   int
	asIs      bool      // the caller is the user already, and cannot change its uid
	parent    uintptr   // the parent's pid, so that the child can see whether the parent has died
	mask      sigset    // the parent's mask, saved during the fork
	none      sigset    // the program's mask: no signal is blocked
	standard  sigaction // SIG_DFL
	ignored   sigaction // SIG_IGN
	ignore    uint64    // the signals that the program ignores: bit N-1 for signal N
	cause     uint64    // the errno that is written to the pipe, with notJoined
}

// cloneArgs are the arguments of clone3, in the form that has a control group (Linux 5.7).
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize uint64

	group uint64 // descriptor of the folder of a control group of version 2
}

type sigset uint64

// sigaction begins with the handler on every architecture that both Go and CUDA support. The rest is zero here.
type sigaction struct {
	handler uintptr
	rest    [7]uintptr
}

const (
	lastSignal = 64
	// ignoreSignal is SIG_IGN.
	ignoreSignal = 1
	sigsetBytes  = 8
	childFailed  = 125
	maxFiles     = 4096 // closed one by one if the kernel has no close_range (before 5.9)

	notJoined = 1 << 32 // marks an error of joining the control group
)

// fork starts a program as the job's user: in a new session, at /, with no signal blocked or ignored, and with three
// open files only. The program dies with its parent, so no daemon is started that no epilog knows. fork returns the
// child's pid at once; launched reports later whether the child has become the program.
//
// It does not use os/exec. There, the child shares the parent's memory and blocks the parent's thread until the exec.
// The child already has the user's uid at that time, so the user could stop the child and with it this process. This
// process would then hang without end, because Go cannot collect garbage, and the child would keep our locks open.
//
// Here the child has a copy of the memory, which the kernel does not let a user read. The parent waits for the child
// only with a deadline.
//
// The child dies when the thread that forked ends. Go ends a thread only if a goroutine ends that is locked to it, and
// no shipped program has one (TestNoThreadEnds).
func (c ControlProgram) fork(job lease.Job, group string, argv, env []string, files [3]*os.File) (pid int, report *os.File, err error) {
	im, err := newImage(job, c.Path, argv, env)
	if err != nil {
		return 0, nil, err
	}
	im.asIs = im.asIs || c.AsIs
	for _, signal := range c.IgnoreSignals {
		im.ignore |= 1 << (signal - 1)
	}
	if group != "" && !im.asIs {
		leave, err := im.join(group)
		if err != nil {
			return 0, nil, err
		}
		defer leave()
	}
	return im.start(files)
}

// join makes the child a member of a control group. The caller calls leave after the fork.
func (im *image) join(group string) (leave func(), err error) {
	joins, err := cgroup.Join(group)
	if err != nil {
		return nil, err
	}
	folder, err := os.Open(group)
	if err != nil {
		joins.Close()
		return nil, fmt.Errorf("cannot join control group: %w", err)
	}
	im.group, im.clone.group = int(joins.Fd()), uint64(folder.Fd())
	return func() { joins.Close(); folder.Close() }, nil
}

func (im *image) start(files [3]*os.File) (pid int, report *os.File, err error) {
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
	groups := append(append([]uint32{}, job.Groups...), job.GID) // one more than is used, so that the slice has an address
	return &image{
		path: p, dir: dir, argv: a, env: e, uid: job.UID, gid: job.GID, groups: groups, nGroups: len(job.Groups),
		asIs: os.Geteuid() != 0, parent: uintptr(os.Getpid()), group: -1, itself: '0',
		clone:   cloneArgs{flags: unix.CLONE_INTO_CGROUP, exitSignal: uint64(unix.SIGCHLD)},
		ignored: sigaction{handler: ignoreSignal},
	}, errors.Join(err1, err2, err3, err4)
}

// launched returns nil if the child has become the program, else the cause. It returns nil, too, if the child was
// killed before: the child's exit status then shows it.
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

// fork clones the process. Until its exec, the child may not grow the stack, allocate or handle a signal. The child
// has only one of the runtime's threads, and Go's handlers would run in it.
//
// The child begins in its control group, if the kernel can do that. A child that moves itself there waits for a grace
// period of the kernel's RCU, which took 12 to 17 ms (measured).
//
//go:nosplit
//go:norace
//go:noinline
func (im *image) fork() (uintptr, syscall.Errno) {
	all := ^sigset(0)
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&im.mask)), sigsetBytes, 0, 0)
	pid, errno := uintptr(0), syscall.ENOSYS
	if im.group >= 0 {
		pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&im.clone)), unsafe.Sizeof(im.clone), 0, 0, 0, 0)
	}
	if errno == 0 && pid == 0 {
		im.group = -1 // it is there; the child has a copy of the memory
	}
	if errno != 0 { // no group, version 1, a kernel before 5.7, or a container that forbids clone3
		pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	}
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
		action := &im.standard
		if im.ignore&(1<<(signal-1)) != 0 {
			action = &im.ignored
		}
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(action)), 0, sigsetBytes, 0, 0)
	}
	errno := im.prepare()
	if errno == 0 {
		syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&im.none)), 0, sigsetBytes, 0, 0)
		_, _, errno = syscall.RawSyscall6(unix.SYS_EXECVE, uintptr(unsafe.Pointer(im.path)), uintptr(unsafe.Pointer(&im.argv[0])),
			uintptr(unsafe.Pointer(&im.env[0])), 0, 0, 0)
	}
	im.cause |= uint64(errno)
	syscall.RawSyscall6(unix.SYS_WRITE, uintptr(im.report), uintptr(unsafe.Pointer(&im.cause)), 8, 0, 0, 0)
	for {
		syscall.RawSyscall6(unix.SYS_EXIT_GROUP, childFailed, 0, 0, 0, 0, 0)
	}
}

// prepare sets up the child for the program. It joins the control group and closes files before it changes the uid,
// because the user can stop the child from then on.
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

// change sets the child's uid, gid and groups to the user's. It leaves the session keyring, in which slurmd may have keys
// of root's. This fails only if the kernel has no keyrings, or a container forbids them.
//
//go:nosplit
//go:norace
//go:noinline
func (im *image) change() syscall.Errno {
	syscall.RawSyscall6(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0, 0)
	if _, _, errno := syscall.RawSyscall6(unix.SYS_SETGROUPS, uintptr(im.nGroups), uintptr(unsafe.Pointer(&im.groups[0])), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	if _, _, errno := syscall.RawSyscall6(unix.SYS_SETRESGID, uintptr(im.gid), uintptr(im.gid), uintptr(im.gid), 0, 0, 0); errno != 0 {
		return errno
	}
	_, _, errno := syscall.RawSyscall6(unix.SYS_SETRESUID, uintptr(im.uid), uintptr(im.uid), uintptr(im.uid), 0, 0, 0)
	return errno
}

// closeRest closes every file except the first three and the report.
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
