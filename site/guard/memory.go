// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// While the guard holds a dead process's memory device files, its host memory stays charged to its control group
// (measured: docs/decisions/023). So the guard checks whether the groups above have memory left.

// Less than limit/shortPart of a group's limit or of the node's memory counts as short for any client: 8 GiB of 512.
const shortPart = 64

// memoryGroup returns the folder of the control group to which a process's memory is charged, from /proc/PID/cgroup, or
// "".
func (k *kernel) memoryGroup(groups []byte) string {
	unified := ""
	for _, group := range proc.ControlGroups(string(groups)) {
		switch {
		case group.Controllers == "":
			unified = filepath.Join(k.groups, group.Path)
		case strings.Contains(","+group.Controllers+",", ",memory,"):
			return filepath.Join(k.groups, "memory", group.Path)
		}
	}
	return unified
}

// hostShort reports whether little memory is left in a dead client's control group, in a group above it, or on the
// node: less than 1/64, or less than the dead client had. A group counts only if the job's user has a process in it.
// The dead client's own group does no harm if it is full.
func (g *Guard) hostShort(c *client) bool {
	for group := c.group; strings.HasPrefix(group, g.kernel.groups+"/"); group = filepath.Dir(group) {
		if g.kernel.memoryOf(group).short(c.resident) && g.kernel.inhabited(group, g.UID) {
			return true
		}
	}
	return g.kernel.memoryOf("").short(c.resident)
}

// memory is a limit and its used part, in bytes. known is false if there is no limit.
type memory struct {
	limit, used uint64
	known       bool
}

func (m memory) short(needed uint64) bool { return m.known && shortOf(m.limit, m.used, needed) }

// memoryOf returns the memory of a group, or of the node for "". It is read once for all dead clients, until the next
// check clears the cache.
func (k *kernel) memoryOf(group string) memory {
	if m, ok := k.memories[group]; ok {
		return m
	}
	var m memory
	if group == "" {
		m.limit, m.used, m.known = nodeMemory()
	} else {
		m.limit, m.used, m.known = groupMemory(group)
	}
	k.memories[group] = m
	return m
}

// maxGroups limits how many control groups below a group are read.
const maxGroups = 256

// inhabited reports whether a user has a process in a control group or below it.
func (k *kernel) inhabited(group string, uid uint32) bool {
	for next, scanned := []string{group}, 0; len(next) > 0 && scanned < maxGroups; scanned++ {
		folder := next[0]
		next = next[1:]
		pids, _ := readText(filepath.Join(folder, "cgroup.procs"))
		for _, line := range bytes.Fields(pids) {
			pid, err := strconv.Atoi(string(line))
			if owner, ok := k.owner(pid); err == nil && ok && owner == uid {
				return true
			}
		}
		entries, _ := os.ReadDir(folder)
		for _, entry := range entries {
			if entry.IsDir() {
				next = append(next, filepath.Join(folder, entry.Name()))
			}
		}
	}
	return false
}

func shortOf(limit, used, needed uint64) bool {
	left := limit - min(limit, used)
	return left < max(limit/shortPart, needed)
}

// groupMemory returns a group's limit and the used bytes, without memory that the kernel can reclaim. ok is false if
// the group has no limit.
func groupMemory(group string) (limit, used uint64, ok bool) {
	for _, names := range [][2]string{{"memory.max", "memory.current"}, {"memory.limit_in_bytes", "memory.usage_in_bytes"}} {
		limit, ok1 := number(group, names[0])
		used, ok2 := number(group, names[1])
		if ok1 && ok2 && limit < 1<<60 { // in cgroup v1, a number near 2^63 means no limit
			return limit, used - min(used, fileCache(group)), true
		}
	}
	return 0, 0, false
}

func number(group, name string) (uint64, bool) {
	content, err := readText(filepath.Join(group, name))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(content)), 10, 64)
	return n, err == nil
}

// fileCache returns the bytes of cached files from memory.stat. It knows the names of both versions of control groups.
func fileCache(group string) (bytesOfFiles uint64) {
	content, err := readText(filepath.Join(group, "memory.stat"))
	if err != nil {
		return 0
	}
	values := fieldsOf(content, " ")
	if cache, v1 := values["total_cache"]; v1 {
		return cache - min(cache, values["total_shmem"])
	}
	return values["file"] - min(values["file"], values["shmem"])
}

// nodeMemory returns the node's memory and the used part, in bytes.
func nodeMemory() (total, used uint64, ok bool) {
	content, err := readText("/proc/meminfo")
	if err != nil {
		return 0, 0, false
	}
	values := fieldsOf(content, ":") // "MemTotal:       16265904 kB"
	total, left := values["MemTotal"]<<10, values["MemAvailable"]<<10
	return total, total - min(total, left), total > 0 && left > 0
}

// fieldsOf parses lines "name value" into a map.
func fieldsOf(content []byte, separator string) map[string]uint64 {
	values := map[string]uint64{}
	for line := range strings.Lines(string(content)) {
		name, rest, found := strings.Cut(line, separator)
		if fields := strings.Fields(rest); found && len(fields) > 0 {
			if n, err := strconv.ParseUint(fields[0], 10, 64); err == nil {
				values[name] = n
			}
		}
	}
	return values
}

// readText reads the first 16 KiB of a file that the kernel writes.
func readText(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return site.ReadOpen(fd, 16<<10)
}

// resident returns the host memory of a process in bytes, from /proc/PID/statm, or 0 if it is unknown.
func (k *kernel) resident(pid int) uint64 {
	content, err := k.read(pid, "statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(content) // size, resident, shared, ... in pages
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(string(fields[1]), 10, 64)
	return pages * uint64(os.Getpagesize())
}
