// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"slices"
	"strconv"
	"strings"
)

// maxList limits the read of one list of children.
const maxList = 1 << 20

// Children returns the pids of a process's children. Each of the process's threads has its own list of children.
func Children(pid int) []int {
	var pids []int
	lists := 0
	_ = EachThread(pid, func(thread int) bool {
		content, err := ReadFile(threadFolder(pid, thread)+"/children", maxList)
		if err != nil {
			return true // that thread has ended, or the kernel has no such file
		}
		lists++
		for field := range strings.FieldsSeq(string(content)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
		return true
	})
	if lists == 0 {
		return childrenBySearch(pid)
	}
	return pids
}

// childrenBySearch returns the children on a kernel without CONFIG_PROC_CHILDREN.
func childrenBySearch(pid int) []int {
	all, _ := PIDs()
	return slices.DeleteFunc(all, func(candidate int) bool {
		status, err := ReadStatus(candidate)
		return err != nil || status.Parent != pid
	})
}
