// SPDX-License-Identifier: Apache-2.0

package site

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stat is the part of /proc/PID/stat that this project uses.
type Stat struct {
	Process
	State   byte // R, S, D, T (stopped), Z (zombie), …
	Parent  int
	Session int
	Threads int
}

// ReadStat reads /proc/PID/stat. The error wraps fs.ErrNotExist if there is no such process.
func ReadStat(pid int) (Stat, error) {
	content, err := readFile("/proc/"+strconv.Itoa(pid)+"/stat", 4096)
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

// parseStat splits the line after the last ')', because the command's name before it may contain any character.
func parseStat(content []byte) (Stat, bool) {
	open, end := bytes.IndexByte(content, '('), bytes.LastIndexByte(content, ')')
	if open < 0 || end < open {
		return Stat{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content[:open])))
	fields := strings.Fields(string(content[end+1:]))
	if err != nil || len(fields) < 20 {
		return Stat{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	threads, err3 := strconv.Atoi(fields[17])
	start, err4 := strconv.ParseUint(fields[19], 10, 64)
	return Stat{Process{pid, start}, fields[0][0], parent, session, threads}, errors.Join(err1, err2, err3, err4) == nil
}

// Running reports whether p exists and is not a zombie. It compares the start time, because pids are used again.
func (p Process) Running() bool {
	if p.PID <= 0 {
		return false
	}
	stat, err := ReadStat(p.PID)
	return err == nil && stat.Start == p.Start && !stat.dead()
}

// dead reports whether a process has ended. If its first thread has ended and other threads run, a process looks like
// a zombie. A user can bring the daemon into that state.
func (s Stat) dead() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// CurrentProcess returns this process.
func CurrentProcess() (Process, error) {
	stat, err := ReadStat(os.Getpid())
	return stat.Process, err
}

// Kill sends a signal to p and to no other process. It opens a pidfd first and then reads the start time again, so a
// later process with the same pid gets no signal. It returns nil if p has ended.
func (p Process) Kill(signal unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot open pidfd of pid %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.Running() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot send %s to pid %d: %w", unix.SignalName(signal), p.PID, err)
	}
	return nil
}

// BootID returns the kernel's identifier of this boot.
func BootID() (string, error) {
	content, err := readFile("/proc/sys/kernel/random/boot_id", 64)
	if err != nil {
		return "", fmt.Errorf("cannot read boot id: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}
