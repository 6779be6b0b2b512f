// SPDX-License-Identifier: Apache-2.0

package site

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CurrentNUMANode is the NUMA node that has all of the CPUs that this process may run on, -1 where they are of several nodes or
// the machine does not say. The folder is /sys/devices/system/node.
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
		if own := countIn(strings.TrimSpace(string(content)), &cpus); own > 0 {
			if own < cpus.Count() {
				return -1 // the rest is another node's
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

// countIn counts how many CPUs of the kernel's list "0-3,8" are in the set.
func countIn(list string, cpus *unix.CPUSet) int {
	count := 0
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
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
