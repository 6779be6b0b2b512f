// SPDX-License-Identifier: Apache-2.0

package testproc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// Leaks returns how many more files this process has open after ten calls of a function. Nothing is collected in that
// time, because the collector closes files that no one has closed.
func Leaks(t *testing.T, call func()) int {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	count := func() int { return len(must.Get(os.ReadDir("/proc/self/fd"))(t)) }
	call() // the runtime opens files of its own once
	before := count()
	for range 10 {
		call()
	}
	return count() - before
}

// Synced returns the names of the files and folders for which a function waited until they were on the disk, in their
// order. The function runs on a thread of its own, below a filter that asks for each fsync; what another goroutine
// syncs is not seen.
func Synced(t *testing.T, call func() error) (names []string) {
	t.Helper()
	result, asked, over := make(chan error, 1), make(chan int, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the filter
		listener, err := tellSyncs()
		if asked <- listener; err == nil {
			err = call()
		}
		close(over)
		result <- err
	}()
	if listener := <-asked; listener >= 0 {
		names = answerSyncs(listener, over)
		unix.Close(listener)
	}
	must.OK(t, <-result)
	return names
}

// tellSyncs puts this thread below a filter that asks the listener for each fsync.
func tellSyncs() (listener int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("cannot forbid new privileges: %w", err)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_FSYNC},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return -1, fmt.Errorf("cannot ask for each fsync: %w", errno)
	}
	return int(fd), nil
}

// answerSyncs lets each fsync go on, until over is closed, and returns the names of its files.
func answerSyncs(listener int, over <-chan struct{}) (names []string) {
	for {
		select {
		case <-over:
			return names
		default:
		}
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, 10); n < 1 || err != nil {
			continue
		}
		var notice struct { // the kernel's struct seccomp_notif
			id         uint64
			pid, flags uint32
			number     int32
			arch       uint32
			at         uint64
			args       [6]uint64
		}
		if control(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&notice)) != nil {
			continue // interrupted: it comes again
		}
		path, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", notice.args[0]))
		answer := struct { // struct seccomp_notif_resp
			id    uint64
			value int64
			errno int32
			flags uint32
		}{id: notice.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if err := control(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer)); !errors.Is(err, unix.ENOENT) {
			names = append(names, filepath.Base(path))
		}
	}
}

func control(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// Unset returns the names of a struct's fields that have no value.
func Unset(options any) (names []string) {
	v := reflect.ValueOf(options)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			names = append(names, v.Type().Field(i).Name)
		}
	}
	return names
}
