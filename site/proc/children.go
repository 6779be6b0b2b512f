// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Children returns the pids of a process's children. Each of the process's threads has its own list of children.
func Children(pid int) []int {
	lists, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	if len(lists) == 0 {
		return childrenBySearch(pid)
	}
	var pids []int
	for _, list := range lists {
		content, err := os.ReadFile(list)
		if err != nil {
			continue // that thread has ended
		}
		for field := range strings.FieldsSeq(string(content)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// childrenBySearch returns the children on a kernel without CONFIG_PROC_CHILDREN.
func childrenBySearch(pid int) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		candidate, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if status, err := ReadStatus(candidate); err == nil && status.Parent == pid {
			pids = append(pids, candidate)
		}
	}
	return pids
}
