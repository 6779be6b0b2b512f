// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// While the guard holds a dead process's memory device files, its host memory stays charged to its control group
// (measured on an H200). So the guard checks whether the groups above have memory left.

// Less than limit/shortPart of a group's limit or of the node's memory counts as short for any client: 8 GiB of 512.
const shortPart = 64

// memoryGroup returns the folder of the control group to which a process's memory is charged, from /proc/PID/cgroup, or
// "".
func (k *kernel) memoryGroup(groups []proc.ControlGroup) string {
	unified := ""
	for _, group := range groups {
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
	if !c.measured && c.group != "" {
		charged := g.kernel.memoryOf(c.group).used
		if grown := charged - min(charged, c.beside); g.shortOf(c, grown) {
			c.resident = max(c.resident, min(grown, g.kernel.unowned(c.group)))
		}
	}
	c.measured = true
	return g.shortOf(c, c.resident)
}

// shortOf is hostShort, if the dead client had that much.
func (g *Guard) shortOf(c *client, had uint64) bool {
	for group := c.group; strings.HasPrefix(group, g.kernel.groups+"/"); group = filepath.Dir(group) {
		if g.kernel.memoryOf(group).short(had) && g.kernel.isInhabited(group, g.UID) {
			return true
		}
	}
	return g.kernel.memoryOf("").short(had)
}

// noteMemory notes a living client's memory, and at some scans what is charged to its group beside that. A client may
// grow after the last scan, and a process that has ended tells no more what it had. Its group has as much more then, and
// besides what the group's other processes have taken.
func (g *Guard) noteMemory(c *client, beside bool) {
	c.resident = proc.Resident(c.proc.PID)
	if beside && c.resident > 0 { // the kernel takes a process's memory before it reports its end
		charged := g.kernel.memoryOf(c.group).used
		c.beside = charged - min(charged, c.resident)
	}
}

// unowned returns the memory that is charged to a group and that no living process there has. It is read once until the
// next check.
func (k *kernel) unowned(group string) uint64 {
	m := k.memoryOf(group)
	if m.unowned == nil {
		left := m.used
		for pid := range members(group) {
			left -= min(left, proc.Resident(pid))
		}
		m.unowned = &left
	}
	return *m.unowned
}

// memory is a limit and its used part, in bytes. limited is false if there is no limit.
type memory struct {
	limit, used uint64
	limited     bool
	inhabited   *bool   // nil if it is not known
	unowned     *uint64 // nil if it is not known
}

func (m *memory) short(needed uint64) bool {
	left := m.limit - min(m.limit, m.used)
	return m.limited && left < max(m.limit/shortPart, needed)
}

// memoryOf returns the memory of a group, or of the node for "". It is read once for all dead clients, until the next
// check clears the cache.
func (k *kernel) memoryOf(group string) *memory {
	m := k.memories[group]
	if m != nil {
		return m
	}
	m = &memory{}
	if group == "" {
		m.limit, m.used, m.limited = proc.NodeMemory()
	} else {
		m.limit, m.used, m.limited = cgroup.Memory(group)
	}
	k.memories[group] = m
	return m
}

// isInhabited reports whether a user has a process in a control group or below it. It is read once until the next
// check.
func (k *kernel) isInhabited(group string, uid uint32) bool {
	m := k.memoryOf(group)
	if m.inhabited == nil {
		m.inhabited = new(bool)
		for pid := range members(group) {
			if owner, ok := proc.Owner(pid); ok && owner == uid {
				*m.inhabited = true
				break
			}
		}
	}
	return *m.inhabited
}

// These limit how many control groups below a group are read, and how many entries of each: a user who was given a group
// makes any number there.
const (
	maxGroups  = 256
	maxEntries = 1024
)

// members returns the processes of a control group and of the groups below it.
func members(group string) iter.Seq[int] {
	return func(yield func(int) bool) {
		for next, scanned := []string{group}, 0; len(next) > 0; scanned++ {
			folder := next[0]
			next = next[1:]
			pids, _ := cgroup.Members(folder)
			for _, pid := range pids {
				if !yield(pid) {
					return
				}
			}
			dir, err := os.Open(folder)
			if err != nil {
				continue
			}
			entries, _ := dir.ReadDir(maxEntries)
			dir.Close()
			for _, entry := range entries {
				if entry.IsDir() && scanned+len(next) < maxGroups-1 {
					next = append(next, filepath.Join(folder, entry.Name()))
				}
			}
		}
	}
}
