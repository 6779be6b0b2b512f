package mpirunwrap

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// descendants are all living processes below this one, parents before their children. This process is their subreaper,
// so what was forked, set its own session and lost its parent is below it too.
func descendants() []site.Proc {
	var found []site.Proc
	seen := map[int]bool{os.Getpid(): true}
	for next := []int{os.Getpid()}; len(next) > 0; next = next[1:] {
		for _, pid := range children(next[0]) {
			if seen[pid] {
				continue
			}
			seen[pid] = true
			next = append(next, pid)
			if stat, err := site.ReadStat(pid); err == nil && stat.State != 'Z' && stat.State != 'X' {
				found = append(found, stat.Proc)
			}
		}
	}
	return found
}

// children are the pids of a process's children, those of all its threads.
func children(pid int) []int {
	lists, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	if len(lists) == 0 {
		return childrenBySearch(pid)
	}
	var pids []int
	for _, list := range lists {
		content, _ := os.ReadFile(list)
		for _, word := range strings.Fields(string(content)) {
			if child, err := strconv.Atoi(word); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// childrenBySearch is for a kernel without CONFIG_PROC_CHILDREN.
func childrenBySearch(pid int) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		candidate, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, err := site.ReadStat(candidate); err == nil && stat.Parent == pid {
			pids = append(pids, candidate)
		}
	}
	return pids
}

// catches and ignores report what a process does with a signal, by the masks in /proc/PID/status.
func catches(pid int, signal unix.Signal) bool { return inMask(pid, "\nSigCgt:", signal) }

func ignores(pid int, signal unix.Signal) bool { return inMask(pid, "\nSigIgn:", signal) }

func inMask(pid int, field string, signal unix.Signal) bool {
	content, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	_, rest, found := bytes.Cut(content, []byte(field))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	mask, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	return found && err == nil && mask&(1<<(uint(signal)-1)) != 0
}

// usesCUDA reports whether a process may have work on a GPU: the driver's library is loaded, or what is loaded may not
// be seen. The library cannot be linked into a program, so without it there is no work. A process that is stopped cannot
// begin to.
func usesCUDA(pid int) bool {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return !os.IsNotExist(err)
	}
	return bytes.Contains(content, []byte("/libcuda.so"))
}
