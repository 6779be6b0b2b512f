// SPDX-License-Identifier: Apache-2.0

// Package proc reads /proc. What a user can make long or slow, the memory of a process, is read within bounds (memory.go);
// the rest is a few lines that the kernel makes itself.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// PIDs are the numbers of all processes.
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

// Name is the name that the kernel has for a process, cut at 15 bytes. The process can change it.
func Name(pid int) (string, error) {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return strings.TrimSuffix(string(name), "\n"), err
}

// UIDs are the real, the effective and the saved uid of a process, and that for files. The owner of its folder in /proc is
// root for a process that may not be dumped.
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
