// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// MemoryGroup is a control group that limits and counts memory.
type MemoryGroup struct {
	t    *testing.T
	path string
	v2   bool
}

// NewMemoryGroup makes a memory group with a limit, of the cgroup version that this machine has. The test's end
// removes the group and ends the processes in it.
func NewMemoryGroup(t *testing.T, limit int64) MemoryGroup {
	t.Helper()
	var refused error
	for _, g := range []MemoryGroup{{t, "/sys/fs/cgroup/memory", false}, {t, "/sys/fs/cgroup", true}, {t, "/sys/fs/cgroup/unified", true}} {
		if g.v2 {
			controllers, err := os.ReadFile(filepath.Join(g.path, "cgroup.controllers"))
			if err != nil || !strings.Contains(string(controllers), "memory") {
				continue
			}
			refused = os.WriteFile(filepath.Join(g.path, "cgroup.subtree_control"), []byte("+memory"), 0)
		} else if _, err := os.Stat(filepath.Join(g.path, "memory.limit_in_bytes")); err != nil {
			continue
		}
		path, err := os.MkdirTemp(g.path, "slurm-mps-test-")
		if refused = errors.Join(refused, err); refused != nil {
			continue
		}
		g.path = path
		t.Cleanup(g.remove)
		g.Set("memory.limit_in_bytes", "memory.max", strconv.FormatInt(limit, 10))
		if g.v2 {
			g.Set("", "cgroup.subtree_control", "+memory")
		}
		return g
	}
	t.Skipf("cannot make a control group for memory here: %v", refused)
	return MemoryGroup{}
}

// Set writes a file of the group. The file has one name in version 1 and another one in version 2.
func (g MemoryGroup) Set(v1, v2, value string) {
	g.t.Helper()
	if g.v2 {
		v1 = v2
	}
	must.OK(g.t, os.WriteFile(filepath.Join(g.path, v1), []byte(value), 0))
}

// Below makes a group below this one.
func (g MemoryGroup) Below(name string) MemoryGroup {
	g.t.Helper()
	g.path = filepath.Join(g.path, name)
	must.OK(g.t, os.Mkdir(g.path, 0o755))
	return g
}

// Inside returns a command line that runs a program in the group.
func (g MemoryGroup) Inside(line ...string) []string {
	return append([]string{"/bin/sh", "-c", `echo $$ >` + filepath.Join(g.path, "cgroup.procs") + ` && exec "$@"`, "sh"}, line...)
}

// Peak returns the largest amount of memory that was in use at one time. It includes the kernel's memory for these
// processes.
func (g MemoryGroup) Peak() int64 {
	g.t.Helper()
	return g.number("memory.max_usage_in_bytes", "memory.peak")
}

// Used returns the memory that is in use.
func (g MemoryGroup) Used() int64 {
	g.t.Helper()
	return g.number("memory.usage_in_bytes", "memory.current")
}

// number reads a file of the group. The file has one name in version 1 and another one in version 2.
func (g MemoryGroup) number(v1, v2 string) int64 {
	g.t.Helper()
	if g.v2 {
		v1 = v2
	}
	return must.Get(strconv.ParseInt(strings.TrimSpace(Read(g.t, filepath.Join(g.path, v1))), 10, 64))(g.t)
}

// remove ends the processes that are left in the group and removes the group.
func (g MemoryGroup) remove() {
	var groups []string
	_ = filepath.WalkDir(g.path, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			groups = append([]string{path}, groups...)
		}
		return nil
	})
	for _, group := range groups {
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			content, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
			for field := range strings.FieldsSeq(string(content)) {
				pid, _ := strconv.Atoi(field)
				if stat, err := proc.ReadStat(pid); err == nil {
					_ = stat.Kill(unix.SIGKILL)
				}
			}
			err := syscall.Rmdir(group)
			if err == nil || errors.Is(err, syscall.ENOENT) {
				break
			}
			if time.Since(began) > WaitLimit {
				g.t.Errorf("cannot remove %s: %v", group, err)
				return
			}
		}
	}
}
