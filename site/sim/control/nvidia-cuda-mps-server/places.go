// SPDX-License-Identifier: Apache-2.0

package main

import (
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// What a dead client has stays taken until the last descriptor of its files is closed, in whichever process it is: its
// place, its GPU memory and its host memory.

const (
	// cleaning is the time from the close of a client's last file until its place and its GPU memory are free. On an
	// H200 a close takes up to 0.4 s.
	cleaning = 20 * time.Millisecond
	// heldCheck is the time between two checks of a dead client's files.
	heldCheck = 5 * time.Millisecond
)

// keep counts a dead client's context while any process holds its files, and for the time of cleaning. The context
// takes a place. A client that finds no place gets error 2 (measured: docs/measurements/13-h200, ends-3
// and ends-4).
func (s *server) keep(pid int, g *gpu) {
	for g.filesHeld(pid) || s.held(pid) || node.ByteLocked(s.control, int64(pid)) {
		time.Sleep(heldCheck)
	}
	time.Sleep(cleaning)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	g.kept--
	g.leave(pid)
}

// keepHost keeps the files with a client's host memory while any process holds both of its memory files. The real
// driver has a reference on the memory of the process for as long (mmget).
func (s *server) keepHost(pid int, files []int) {
	for len(files) > 0 && s.held(pid) {
		time.Sleep(heldCheck)
	}
	for _, file := range files {
		syscall.Close(file)
	}
}

// take notes that a process has one more context. The server locks the process's byte of the GPU's device file, too, so
// that the node counts the process's memory until the cleaning is over. The caller holds the mutex.
func (g *gpu) take(pid int) {
	if g.taken[pid]++; g.taken[pid] == 1 {
		lock(g.file.Fd(), pid, syscall.F_RDLCK)
	}
}

// leave undoes take. The caller holds the mutex.
func (g *gpu) leave(pid int) {
	if g.taken[pid]--; g.taken[pid] == 0 {
		delete(g.taken, pid)
		lock(g.file.Fd(), pid, syscall.F_UNLCK)
	}
}

// filesHeld reports whether any other process has the file of the GPU open that a client has opened.
func (g *gpu) filesHeld(pid int) bool { return node.ByteLocked(g.file, int64(pid)) }

// lock locks or unlocks a byte of an open file. The lock belongs to the open file, so its owner does not see it.
func lock(file uintptr, at int, kind int16) {
	const ofdSetLock = 37 // F_OFD_SETLK, which package syscall lacks
	syscall.FcntlFlock(file, ofdSetLock, &syscall.Flock_t{Type: kind, Start: int64(at), Len: 1})
}
