// SPDX-License-Identifier: Apache-2.0

//go:build (amd64 || arm64) && !race && !msan && !asan

package main

import (
	"runtime"
	"syscall"
	"unsafe"
)

// The program gets the signal dispositions and the mask that this process was started with. Go's runtime would lose them:
// when it starts, it takes every signal, so one that was ignored has its default action after an exec, and it unblocks
// SIGCHLD, SIGPROF and the signals of faults. It keeps what it found to itself.
//
// The runtime calls these two functions in place of the system calls, as it does for a program with C in it. They are
// variables of the runtime that runtime/cgo sets, which this program does not link. So Go takes no signal at all here: a
// signal does to the wrapper what it would do to any program. That also saves the start 130 system calls.

// leaveSignals takes the place of rt_sigaction and does nothing.
//
//go:linkname leaveSignals leaveSignals
var leaveSignals byte

//go:linkname _cgo_sigaction _cgo_sigaction
var _cgo_sigaction = &leaveSignals

// mapMemory takes the place of mmap, which the runtime calls before it changes the mask. The first call saves the mask.
//
//go:linkname mapMemory mapMemory
var mapMemory byte

//go:linkname _cgo_mmap _cgo_mmap
var _cgo_mmap = &mapMemory

var (
	startMask uint64
	maskSaved uint64 // 1 from the first call on
)

// The mask is a thread's, and a program has that of the thread that calls exec.
func init() {
	if startMask == 0 {
		return // as usual: a thread to itself would cost the start another one
	}
	const setMask, size = 2, 8
	runtime.LockOSThread()
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, setMask, uintptr(unsafe.Pointer(&startMask)), 0, size, 0, 0)
}
