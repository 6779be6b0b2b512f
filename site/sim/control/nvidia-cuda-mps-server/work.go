// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// work is a page that a client shares with the server: what it has in flight. libcuda.c writes it, so that the server
// knows what a client that was killed has left on the GPU. All numbers are 64 bits in the machine's order; times are
// nanoseconds of CLOCK_MONOTONIC.
//
//	0   launches so far
//	8   unused
//	16  begin, end of launch n at 16 + 16·(n mod 1024)
type work struct{ page []byte }

const (
	workSlots = 1024
	workSize  = 16 + 16*workSlots
)

// How much work outlasts the tear-down of a killed client was measured with kernels from 0.1 to 400 ms and with queues:
// up to 5 ms, and any queue of kernels of 1 ms and less, all neighbours live; with 20 ms and with a queue of 5 ms most
// die; from 50 ms on all. It fits when what counts is the kernel that runs and the three behind it: less than 10 ms of
// them in all does no harm, nor does what ends within 5 ms, unless it is 40 ms or more in all.
const (
	behind   = 3
	harmless = 10 * time.Millisecond
	teardown = 5 * time.Millisecond
	fatal    = 40 * time.Millisecond
)

// outlasts reports whether the work in flight at the time t is more than the tear-down waits for.
func (w *work) outlasts(t uint64) bool {
	n, found := w.running(t)
	if !found {
		return false
	}
	begin, end := w.launch(n)
	for next := n + 1; next <= n+behind && next < w.word(0); next++ {
		_, end = w.launch(next)
	}
	whole, rest := time.Duration(end-begin), time.Duration(end-t)
	return whole >= fatal || whole >= harmless && rest > teardown
}

// queued reports whether more is in flight at the time t than terminate_client ends in peace. It ends the kernel that
// runs, of whatever length. What waits behind that one is then left as after a kill (measured with queues of kernels
// of 5 and 70 ms, which killed all neighbours, and with one kernel of 400 ms and queues of 0.1 ms, which killed
// none).
func (w *work) queued(t uint64) bool {
	n, found := w.running(t)
	if !found {
		return false
	}
	_, end := w.launch(n)
	return w.outlasts(end)
}

// running is the launch that the GPU has come to at the time t.
func (w *work) running(t uint64) (n uint64, found bool) {
	launched := w.word(0)
	if launched > workSlots {
		n = launched - workSlots
	}
	for ; n < launched; n++ {
		if begin, end := w.launch(n); t >= begin && t < end {
			return n, true
		}
	}
	return 0, false
}

// within is how much of the time from one to another the work takes.
func (w *work) within(from, to uint64) (sum uint64) {
	launched, n := w.word(0), uint64(0)
	if launched > workSlots {
		n = launched - workSlots
	}
	for ; n < launched; n++ {
		begin, end := w.launch(n)
		if begin, end = max(begin, from), min(end, to); begin < end {
			sum += end - begin
		}
	}
	return sum
}

// end is when the last launch ends; 0 before any.
func (w *work) end() uint64 {
	launched := w.word(0)
	if launched == 0 {
		return 0
	}
	_, end := w.launch(launched - 1)
	return end
}

func (w *work) launch(n uint64) (begin, end uint64) {
	at := 16 + 16*int(n%workSlots)
	return w.word(at), w.word(at + 8)
}

func (w *work) word(at int) uint64 { return binary.NativeEndian.Uint64(w.page[at:]) }

// mapWork maps the page that came as a descriptor with a packet.
func mapWork(files []int) (*work, error) {
	if len(files) != 1 {
		return nil, errWords
	}
	defer syscall.Close(files[0])
	var stat syscall.Stat_t
	if err := syscall.Fstat(files[0], &stat); err != nil || stat.Size < workSize {
		return nil, fmt.Errorf("cannot map work page of %d bytes: %w", stat.Size, errWords)
	}
	page, err := syscall.Mmap(files[0], 0, workSize, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("cannot map work page: %w", err)
	}
	return &work{page}, nil
}

func (w *work) close() { syscall.Munmap(w.page) }

const clockMonotonic = 1

func clockGettime(t *syscall.Timespec) {
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(t)), 0)
}
