// SPDX-License-Identifier: Apache-2.0

package site

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CurrentNUMANode returns the NUMA node of all CPUs that this process may run on. It returns -1 if the CPUs are of
// several nodes or the node is unknown. The folder is /sys/devices/system/node.
func CurrentNUMANode(folder string) int {
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return -1
	}
	lists, err := filepath.Glob(filepath.Join(folder, "node[0-9]*", "cpulist"))
	if err != nil {
		return -1
	}
	for _, list := range lists {
		content, err := os.ReadFile(list)
		if err != nil {
			continue
		}
		if count := countIn(strings.TrimSpace(string(content)), &cpus); count > 0 {
			if count < cpus.Count() {
				return -1 // other CPUs are of another node
			}
			node, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(list)), "node"))
			if err != nil {
				return -1
			}
			return node
		}
	}
	return -1
}

// countIn counts the CPUs of the kernel's list, such as "0-3,8", that are in the set.
func countIn(list string, cpus *unix.CPUSet) int {
	count := 0
	for part := range strings.SplitSeq(list, ",") {
		begin, end, isRange := strings.Cut(part, "-")
		if !isRange {
			end = begin
		}
		first, err1 := strconv.Atoi(begin)
		last, err2 := strconv.Atoi(end)
		if err1 != nil || err2 != nil {
			continue
		}
		for cpu := first; cpu <= last; cpu++ {
			if cpus.IsSet(cpu) {
				count++
			}
		}
	}
	return count
}
