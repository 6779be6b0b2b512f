// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// work is a page that a client shares with the server. The CUDA library (cuda.c) writes into it what the client has
// in flight. So the server knows what a killed client has left on the GPU. All numbers have 64 bits in the machine's
// byte order. Times are nanoseconds of CLOCK_MONOTONIC.
//
//	0   launches so far
//	8   unused
//	16  begin, end of launch n at 16 + 16·(n mod 1024)
type work struct{ page []byte }

const (
	workSlots = 1024
	workSize  = 16 + 16*workSlots
)

// Some of the work in flight outlasts the tear-down of a killed client. How much was measured with kernels from 0.1
// to 400 ms and with queues. All neighbours live with kernels up to 5 ms, and with any queue of kernels of 1 ms or
// less. Most neighbours die with a kernel of 20 ms and with a queue of kernels of 5 ms. All die with kernels of 50 ms
// or more.
//
// One rule fits these results. It adds up the kernel that runs and the three behind it. They do no harm if together
// they take less than 10 ms. They also do no harm if they end within 5 ms, unless together they take 40 ms or more.
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

// queued reports whether more is in flight at the time t than terminate_client ends without harm. terminate_client
// ends the kernel that runs, of any length. The kernels that wait behind it are then left as after a kill. In
// measurements, queues of kernels of 5 and 70 ms killed all neighbours. One kernel of 400 ms and queues of kernels of
// 0.1 ms killed none.
func (w *work) queued(t uint64) bool {
	n, found := w.running(t)
	if !found {
		return false
	}
	_, end := w.launch(n)
	return w.outlasts(end)
}

// running returns the launch that the GPU runs at the time t.
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

// within returns the part of the time between from and to that the work takes.
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

// end returns the time at which the last launch ends; 0 before the first launch.
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

// mapWork maps the page whose descriptor came with a packet.
func mapWork(files []int) (*work, error) {
	if len(files) != 1 {
		return nil, errPacket
	}
	defer syscall.Close(files[0])
	var stat syscall.Stat_t
	if err := syscall.Fstat(files[0], &stat); err != nil || stat.Size < workSize {
		return nil, fmt.Errorf("cannot map work page of %d bytes: %w", stat.Size, errPacket)
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
