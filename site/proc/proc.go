// SPDX-License-Identifier: Apache-2.0

// Package proc identifies processes and reads /proc. Every read has a limit in bytes and in time, because a user
// decides how long some of them take: those of a process's memory (memory.go), and those of a process that is in the
// middle of an exec (stat.go). The other files are short, and their readers wait for no process.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Name returns the kernel's name for a process, cut at 15 bytes. The process can change it.
func Name(pid int) (string, error) {
	name, err := ReadFile(folder(pid)+"/comm", 64)
	return strings.TrimSuffix(string(name), "\n"), err
}

// Exists reports whether there is a process with this pid, or a thread with this number.
func Exists(pid int) bool {
	_, ok := Owner(pid)
	return ok
}

// SetNice sets the nice value of all threads of a process, as far as this process may. In Linux each thread has its
// own, and a new thread takes that of the thread that created it.
func SetNice(pid, nice int) {
	_ = EachThread(pid, func(thread int) bool {
		_ = unix.Setpriority(unix.PRIO_PROCESS, thread, nice)
		return true
	})
}

// SetOOMScore sets how likely the kernel kills a process when memory runs out: from -1000, never, to 1000.
func SetOOMScore(pid, score int) error {
	err := os.WriteFile(folder(pid)+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
	if err != nil {
		return fmt.Errorf("cannot set oom_score_adj: %w", err)
	}
	return nil
}

// Owner returns the owner of a process's folder: its effective uid, or root's if the process is not dumpable.
func Owner(pid int) (uid uint32, ok bool) {
	var st unix.Stat_t
	err := unix.Lstat(folder(pid), &st)
	return st.Uid, err == nil
}

// Resident returns the host memory of a process in bytes, or 0 if it is unknown. The first numbers of /proc/PID/statm
// are its size and what is resident, in pages:
//
//	2104 1340 1210 211 0 410 0
func Resident(pid int) uint64 {
	content, err := ReadFile(Folder(pid)+"/statm", 256)
	fields := strings.Fields(string(content))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(fields[1], 10, 64)
	return pages * uint64(os.Getpagesize())
}

// Status is the part of /proc/PID/status that this project uses. Its readers never wait for the process.
type Status struct {
	State   byte // as in Stat
	Parent  int
	Tracer  int // the thread that traces it, 0 for none
	Threads int
	UIDs    [4]uint32 // real, effective, saved, of the file system
	Nested  bool      // it has a pid in a pid namespace of its own, as in a container
}

// Running reports whether the process is not a zombie.
func (s Status) Running() bool { return !dead(s.State, s.Threads) }

// Stopped reports whether the process is stopped, by a signal or a tracer.
func (s Status) Stopped() bool { return s.State == 'T' || s.State == 't' }

// maxStatus is above the length of the file, which has some 60 lines.
const maxStatus = 16 << 10

// ReadStatus reads /proc/PID/status. If the first thread has ended, its state, tracer and users are those of the first
// living thread.
func ReadStatus(pid int) (Status, error) {
	s, err := readStatus(folder(pid))
	if err != nil || !ended(s.State) || s.Threads <= 1 {
		return s, err
	}
	if living, err := ReadThread(pid, Thread(pid)); err == nil {
		s.State, s.Tracer, s.UIDs = living.State, living.Tracer, living.UIDs
	}
	return s, nil
}

// ReadThread reads /proc/PID/task/THREAD/status.
func ReadThread(pid, thread int) (Status, error) {
	return readStatus(threadFolder(pid, thread))
}

func readStatus(folder string) (Status, error) {
	var room [2 << 10]byte
	content, err := readInto(room[:0], folder+"/status", maxStatus)
	if err != nil {
		return Status{}, fmt.Errorf("cannot read status: %w", err)
	}
	s, err := parseStatus(content)
	if err != nil {
		return Status{}, fmt.Errorf("cannot read %s/status: %w", folder, err)
	}
	return s, nil
}

// parseStatus parses /proc/PID/status. A guard reads this of all processes, so it leaves little garbage. These are the
// lines that it uses:
//
//	State:	S (sleeping)
//	PPid:	4100
//	TracerPid:	0
//	Uid:	1000	1000	1000	1000
//	NSpid:	4242	7
//	Threads:	7
func parseStatus(content []byte) (s Status, err error) {
	missing := 6
	for line, rest, more := bytes.Cut(content, []byte("\n")); more; line, rest, more = bytes.Cut(rest, []byte("\n")) {
		name, value, _ := bytes.Cut(line, []byte(":")) // a process's own name is escaped, so it makes no line
		if value = bytes.TrimSpace(value); len(value) == 0 {
			continue
		}
		switch string(name) {
		case "State":
			s.State = value[0]
		case "PPid":
			s.Parent, err = strconv.Atoi(string(value))
		case "TracerPid":
			s.Tracer, err = strconv.Atoi(string(value))
		case "Uid":
			_, err = fmt.Sscan(string(value), &s.UIDs[0], &s.UIDs[1], &s.UIDs[2], &s.UIDs[3])
		case "NSpid":
			s.Nested = bytes.ContainsRune(value, '\t')
		case "Threads":
			s.Threads, err = strconv.Atoi(string(value))
		default:
			continue
		}
		if missing--; err != nil {
			return Status{}, fmt.Errorf("unexpected line %q", string(line))
		}
	}
	if missing != 0 {
		return Status{}, errors.New("it lacks a line")
	}
	return s, nil
}

// UIDs returns the real, effective, saved and file system uid of a process.
func UIDs(pid int) ([4]uint32, error) {
	status, err := ReadStatus(pid)
	return status.UIDs, err
}

// program is the file that a process runs.
type program struct {
	Path     string // "" if this process may not see it, or it does not answer
	RootsOwn bool   // the file is root's, and only root may write it; false if Path is ""
}

// Programs finds the files that processes run, within a second for all of them. No file system is asked.
func Programs(ctx context.Context, procs []Process) []program {
	programs := make([]program, len(procs))
	for i, a := range each(ctx, states, procs, programOf) {
		programs[i] = a.value
	}
	return programs
}

func programOf(_ context.Context, p Process) (program, error) {
	link := Folder(p.PID) + "/exe"
	path, err := os.Readlink(link)
	if err != nil {
		return program{}, err
	}
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_UID|unix.STATX_MODE, &st)
	return program{strings.TrimSuffix(path, " (deleted)"), err == nil && st.Uid == 0 && st.Mode&0o022 == 0}, nil
}
