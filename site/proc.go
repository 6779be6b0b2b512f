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

// Stat is what /proc says of a process.
type Stat struct {
	Process
	State   byte // R, S, D, T (stopped), Z (zombie), …
	Parent  int
	Session int
	Threads int
}

// ReadStat reads /proc/PID/stat. The error wraps fs.ErrNotExist where there is no such process.
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

// parseStat takes the line apart behind the last ')': the command's name before it may hold anything.
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

// Running reports whether p is there and not a zombie: the same start time, not only the same pid.
func (p Process) Running() bool {
	if p.PID <= 0 {
		return false
	}
	stat, err := ReadStat(p.PID)
	return err == nil && stat.Start == p.Start && !stat.dead()
}

// dead reports whether a process has ended. One whose first thread has ended while others go on looks like a zombie: a
// daemon can be made to look so by the user who runs it.
func (s Stat) dead() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// CurrentProcess is this process.
func CurrentProcess() (Process, error) {
	stat, err := ReadStat(os.Getpid())
	return stat.Process, err
}

// Kill ends p and nothing else: the signal goes through a pidfd, and the start time is read again after that is open, so
// that a process that got the same pid meanwhile cannot be hit. It is no error when p has gone.
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

// BootID is the kernel's name for this boot.
func BootID() (string, error) {
	content, err := readFile("/proc/sys/kernel/random/boot_id", 64)
	if err != nil {
		return "", fmt.Errorf("cannot read boot id: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}
