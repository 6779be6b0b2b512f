// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process identifies a process by its pid and start time, because the kernel uses pids again.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat, in clock ticks since the boot
}

// String returns "pid 123".
func (p Process) String() string { return fmt.Sprintf("pid %d", p.PID) }

// Stat is the part of /proc/PID/stat that this project uses.
type Stat struct {
	Process
	State   byte // R, S, D, T (stopped), Z (zombie), …
	Parent  int
	Session int
	Threads int
	CPU     uint64 // that it has used, in clock ticks
	Exiting bool   // the kernel is ending its first thread
	// Exit is the exit status of a zombie, as in wait(2). It is 0 if this process may not trace the other one.
	Exit uint32
}

// ErrSilent means that the kernel's account of a process did not come in time, or that too many others are awaited.
// Such a process is in the middle of an exec. The kernel closes files then, and holds the lock that every reader of
// /proc/PID/stat takes. If such a file is in a file system of the user's, the user decides how long readers wait, also
// those of root. Of the files that this package reads, stat, environ, exe and the links of fd wait for the lock. comm,
// status, cgroup and the folder itself do not (measured on Linux 6.18).
var ErrSilent = errors.New("it does not answer")

const (
	// statTime is the time for one process that a record names, or for all processes of a list.
	statTime = time.Second
	// maxSilent limits the abandoned readers of processes in an exec. The readers of recorded processes have some of
	// their own, so that no number of other processes uses them up.
	maxSilent, maxSilentRecorded = 128, 32
)

// states are the readers of /proc/PID/stat and exe. A reader is known by its pid, because the kernel does not use the
// pid again while the reader waits.
var states = newReaders(maxSilent)

// ReadStat reads /proc/PID/stat, within a second. The error wraps fs.ErrNotExist if there is no such process, and
// ErrSilent if the process does not answer.
func ReadStat(pid int) (Stat, error) {
	if pid == os.Getpid() { // a process that reads is not in an exec
		return StatNow(pid)
	}
	found := recorded([]Process{{PID: pid}})[0]
	return found.Stat, found.Err
}

// statResult is the result of reading one of several processes.
type statResult struct {
	Stat
	Err error
}

// ReadStats reads /proc/PID/stat of several processes, within a second for all of them.
func ReadStats(ctx context.Context, pids []int) []statResult {
	procs := make([]Process, len(pids))
	for i, pid := range pids {
		procs[i].PID = pid
	}
	return readStats(ctx, procs, maxSilent)
}

// recorded reads the processes that a record names.
func recorded(procs []Process) []statResult {
	return readStats(context.Background(), procs, maxSilent+maxSilentRecorded)
}

func readStats(ctx context.Context, all []Process, limit int) []statResult {
	found := make([]statResult, len(all))
	var procs []Process
	var indexes []int
	for i, p := range all {
		if !Exists(p.PID) {
			found[i].Err = fmt.Errorf("cannot read state of pid %d: %w", p.PID, fs.ErrNotExist)
			continue
		}
		procs, indexes = append(procs, Process{PID: p.PID}), append(indexes, i)
	}
	statOf := func(_ context.Context, p Process) (Stat, error) { return StatNow(p.PID) }
	for k, a := range eachUpTo(ctx, states, limit, statTime, procs, statOf) {
		if errors.Is(a.err, ErrLate) {
			a.err = fmt.Errorf("cannot read state of pid %d: %w", procs[k].PID, ErrSilent)
		}
		found[indexes[k]] = statResult{a.value, a.err}
	}
	return found
}

// Silence describes the processes that have not answered and still do not in one line, "" if there are none.
func Silence() string {
	states.mutex.Lock()
	var pids []int
	for p := range states.left {
		pids = append(pids, p.PID)
	}
	states.mutex.Unlock()
	slices.Sort(pids)
	if len(pids) == 0 {
		return ""
	}
	first := fmt.Sprintf("pid %d", pids[0])
	if uids, err := UIDs(pids[0]); err == nil {
		first += fmt.Sprintf(" of uid %d", uids[0])
	}
	return fmt.Sprintf("some processes do not answer (%d, first %s): "+
		"they are in the middle of an exec, and are not taken for those of MPS", len(pids), first)
}

// StatNow is ReadStat in this goroutine: it waits as long as the process is in an exec.
func StatNow(pid int) (Stat, error) { return readStatOf(folder(pid), pid) }

// ReadThreadStat reads /proc/PID/task/THREAD/stat, and waits as long as the process is in an exec.
func ReadThreadStat(pid, thread int) (Stat, error) {
	return readStatOf(threadFolder(pid, thread), thread)
}

func readStatOf(folder string, pid int) (Stat, error) {
	content, err := ReadFile(folder+"/stat", 4096)
	if errors.Is(err, unix.ESRCH) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Stat{}, fmt.Errorf("cannot read state of pid %d: %w", pid, err)
	}
	stat, ok := parseStat(content)
	if !ok || stat.PID != pid {
		return Stat{}, fmt.Errorf("cannot read state of pid %d: unexpected form %q", pid, content)
	}
	return stat, nil
}

// parseStat parses a line of /proc/PID/stat:
//
//	4242 (my (odd) name) S 4100 4242 4200 34816 4242 4194560 513 0 0 0 12 3 0 0 20 0 7 0 8675309 … 0
//
// It splits the line after the last ')', because the command's name before it may contain any character. The numbers of
// the fields are those of proc(5): field 3: state, 4: parent, 6: session, 9: flags, 14 and 15: time of user and system,
// 20: threads, 22: start time, 52: exit code.
func parseStat(content []byte) (Stat, bool) {
	open, end := bytes.IndexByte(content, '('), bytes.LastIndexByte(content, ')')
	if open < 0 || end < open {
		return Stat{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content[:open])))
	fields := strings.Fields(string(content[end+1:]))
	const first, last = 3, 52 // the numbers of fields[0] and of the last field
	if err != nil || len(fields) <= last-first {
		return Stat{}, false
	}
	var n [last + 1]uint64 // by the number of the field
	for _, i := range []int{4, 6, 9, 14, 15, 20, 22, 52} {
		if n[i], err = strconv.ParseUint(fields[i-first], 10, 64); err != nil {
			return Stat{}, false
		}
	}
	const exiting = 4 // PF_EXITING
	return Stat{
		Process{pid, n[22]}, fields[0][0], int(n[4]), int(n[6]), int(n[20]), n[14] + n[15], n[9]&exiting != 0, uint32(n[52]),
	}, true
}

// Running reports whether p exists and is not a zombie. It compares the start time, because pids are used again. A
// process that does not answer is not proved to be p, and counts as another one.
func (p Process) Running() bool {
	if p.PID <= 0 || !Exists(p.PID) {
		return false
	}
	stat, err := ReadStat(p.PID)
	return err == nil && p.is(stat)
}

// RunningOr is Running without a goroutine, which would cost the start of a rank 0.1 ms. If p does not answer within a
// second, it calls silent, which ends this program.
func (p Process) RunningOr(silent func()) bool {
	defer time.AfterFunc(statTime, silent).Stop()
	stat, err := StatNow(p.PID)
	return err == nil && p.is(stat)
}

func (p Process) is(stat Stat) bool { return stat.Process == p && !dead(stat.State, stat.Threads) }

// Left returns the processes that run or do not answer, within a second for all of them. All have answered before.
func Left(procs []Process) (left []Process) {
	for i, found := range recorded(procs) {
		if errors.Is(found.Err, ErrSilent) || found.Err == nil && procs[i].is(found.Stat) {
			left = append(left, procs[i])
		}
	}
	return left
}

// Ran reports for each process whether it runs, within a second for all of them. All have answered before. A process
// that does not answer now counts as another one.
func Ran(procs []Process) []bool {
	running := make([]bool, len(procs))
	for i, found := range recorded(procs) {
		running[i] = found.Err == nil && procs[i].is(found.Stat)
	}
	return running
}

// dead reports whether a process has ended. If its first thread has ended and other threads run, a process looks like
// a zombie. A user can bring the daemon into that state.
func dead(state byte, threads int) bool { return ended(state) && threads <= 1 }

// Running reports whether the process of a Stat is not a zombie.
func (s Stat) Running() bool { return !dead(s.State, s.Threads) }

// Current returns this process.
func Current() (Process, error) {
	stat, err := StatNow(os.Getpid())
	return stat.Process, err
}

// Kill sends a signal to p and to no other process. It opens a pidfd first and then reads the start time, so a later
// process with the same pid gets no signal. It returns nil if p has ended.
func (p Process) Kill(signal unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot open pidfd of pid %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	stat, err := ReadStat(p.PID)
	switch {
	case errors.Is(err, ErrSilent):
		return fmt.Errorf("cannot send %s to pid %d: %w", unix.SignalName(signal), p.PID, ErrSilent)
	case err != nil || !p.is(stat):
		return nil
	}
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot send %s to pid %d: %w", unix.SignalName(signal), p.PID, err)
	}
	return nil
}
