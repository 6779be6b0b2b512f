// SPDX-License-Identifier: Apache-2.0

// Package proc identifies processes and reads /proc. Every read has a limit in bytes and in time, because a user
// decides how long some of them take: those of a process's memory (memory.go), and those of a process that is in the
// middle of an exec (stat.go). The other files are short, and their readers wait for no process.
package proc

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PIDs returns the pids of all processes.
func PIDs() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	var all []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all, nil
}

// Name returns the kernel's name for a process, cut at 15 bytes. The process can change it.
func Name(pid int) (string, error) {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return strings.TrimSuffix(string(name), "\n"), err
}

// Exists reports whether there is a process with this pid, or a thread with this number.
func Exists(pid int) bool {
	var st unix.Stat_t
	return unix.Lstat("/proc/"+strconv.Itoa(pid), &st) == nil
}

// SetNice sets the nice value of all threads of a process, as far as this process may. In Linux each thread has its
// own, and a new thread takes that of the thread that created it.
func SetNice(pid, nice int) {
	threads, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, nice)
		}
	}
}

// Status is the part of /proc/PID/status that this project uses. Its readers never wait for the process.
type Status struct {
	State   byte // as in Stat
	Parent  int
	Threads int
	UIDs    [4]uint32 // real, effective, saved, of the file system
}

// Running reports whether the process is not a zombie.
func (s Status) Running() bool { return !dead(s.State, s.Threads) }

// Stopped reports whether the process is stopped, by a signal or a tracer.
func (s Status) Stopped() bool { return s.State == 'T' || s.State == 't' }

// maxStatus is above the length of the file, which has some 60 lines.
const maxStatus = 16 << 10

// ReadStatus reads /proc/PID/status. These are the lines that it uses:
//
//	State:	S (sleeping)
//	PPid:	4100
//	Uid:	1000	1000	1000	1000
//	Threads:	7
func ReadStatus(pid int) (Status, error) {
	content, err := readFile("/proc/"+strconv.Itoa(pid)+"/status", maxStatus)
	if err != nil {
		return Status{}, fmt.Errorf("cannot read status of pid %d: %w", pid, err)
	}
	var s Status
	fields := map[string][]any{
		"State": {&s.State}, "PPid": {&s.Parent}, "Threads": {&s.Threads},
		"Uid": {&s.UIDs[0], &s.UIDs[1], &s.UIDs[2], &s.UIDs[3]},
	}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(line, ":") // a process's own name is escaped, so it makes no line
		into := fields[name]
		if into == nil {
			continue
		}
		if value = strings.TrimSpace(value); name == "State" && value != "" {
			s.State = value[0]
		} else if _, err := fmt.Sscan(value, into...); err != nil {
			return Status{}, fmt.Errorf("cannot read status of pid %d: unexpected line %q", pid, line)
		}
		delete(fields, name)
	}
	if len(fields) > 0 {
		return Status{}, fmt.Errorf("cannot read status of pid %d: it lacks a line", pid)
	}
	return s, nil
}

// UIDs returns the real, effective, saved and file system uid of a process.
func UIDs(pid int) ([4]uint32, error) {
	status, err := ReadStatus(pid)
	return status.UIDs, err
}

// Program is the file that a process runs.
type Program struct {
	Path     string // "" if this process may not see it, or it does not answer
	RootsOwn bool   // the file is root's, and only root may write it; false if Path is ""
}

// Programs finds the files that processes run, within a second for all of them. No file system is asked.
func Programs(ctx context.Context, procs []Process) []Program {
	programs := make([]Program, len(procs))
	for i, a := range each(ctx, states, procs, programOf) {
		programs[i] = a.value
	}
	return programs
}

func programOf(_ context.Context, p Process) (Program, error) {
	link := "/proc/" + strconv.Itoa(p.PID) + "/exe"
	path, err := os.Readlink(link)
	if err != nil {
		return Program{}, err
	}
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_UID|unix.STATX_MODE, &st)
	return Program{strings.TrimSuffix(path, " (deleted)"), err == nil && st.Uid == 0 && st.Mode&0o022 == 0}, nil
}
