// SPDX-License-Identifier: Apache-2.0

//go:build (amd64 || arm64) && !race && !msan && !asan

package main

import (
	"runtime"
	"syscall"
	"unsafe"
)

// The program gets the signal dispositions and the mask with which this process was started. Go's runtime would lose
// them. When it starts, it catches every signal, so an ignored signal has its default action after an exec. It also
// unblocks SIGCHLD, SIGPROF and the signals of faults. It does not export the original state.
//
// The runtime calls these two functions in place of the system calls, as it does for a program with C code. They are
// variables of the runtime that runtime/cgo sets, which this program does not link. So Go catches no signal here, and a
// signal does to the wrapper what it would do to any program. That also saves 130 system calls at the start.

// leaveSignals replaces rt_sigaction and does nothing.
//
//go:linkname leaveSignals leaveSignals
var leaveSignals byte

//go:linkname _cgo_sigaction _cgo_sigaction
var _cgo_sigaction = &leaveSignals

// mapMemory replaces mmap, which the runtime calls before it changes the mask. The first call saves the mask.
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
