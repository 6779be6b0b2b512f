// SPDX-License-Identifier: Apache-2.0

// Package proc reads /proc. A user can make a process's memory long or slow, so memory.go reads it with limits. The
// kernel itself writes the other files, which are short.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
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

// UIDs returns the real, effective, saved and file system uid of a process. It does not use the owner of /proc/PID,
// because root is the owner if the process may not be dumped.
func UIDs(pid int) ([4]uint32, error) {
	var uids [4]uint32
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return uids, fmt.Errorf("cannot read owner of pid %d: %w", pid, err)
	}
	_, rest, _ := bytes.Cut(status, []byte("\nUid:"))
	if _, err := fmt.Sscan(string(rest), &uids[0], &uids[1], &uids[2], &uids[3]); err != nil {
		return uids, fmt.Errorf("cannot read owner of pid %d: its status names none", pid)
	}
	return uids, nil
}
