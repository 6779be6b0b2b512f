// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// claimant is a user whose processes claim to have much memory.
const claimant = stormy + 20

// A user's 250 processes claim an environment and a command line of 64 GiB each, which costs the user nothing. Root's
// programs read a bounded part of these in a bounded time.
//
// Half of the processes claim to be the job's daemon. The test runs each program without these processes and then
// beside them, and compares the costs. All processes run in one control group, so that the group's limit ends an
// unbounded reader before the machine runs out of memory.
func TestHostileClaimsOfMemory(t *testing.T) {
	const processes, gib, maxMore, maxWork = 250, 64, 32 << 20, 2 * time.Second
	const maxLonger = 25 * time.Second // 250 processes and other tests share the cores, and an epilog may take 60 s
	a := newAttack(t, "", 1)
	all := newMemoryGroup(t, 3<<30)
	// Reads the files into the page cache, because the group's peak includes the cache.
	a.costs(all, a.job(6, "0"), func() {})
	plain := a.costs(all, a.job(7, "0"), func() {})
	beside := a.costs(all, a.job(8, "0"), func() {
		pipe := filepath.Join(a.Paths().Run(), "jobs/8/0/pipe")
		line := []string{"setpriv", fmt.Sprint("--reuid=", claimant), fmt.Sprint("--regid=", claimant), "--clear-groups", a.named("nvidia-cuda-mps-server")}
		a.goesOn(a.as(0, all.below("attack").inside(append(line, "claims", strconv.Itoa(processes), strconv.Itoa(gib), pipe)...)...))
		if n := a.claiming(); n < processes {
			t.Fatalf("the attack does not start: %d processes claim memory", n)
		}
	})
	for _, p := range costed {
		t.Logf("%-8s %5d KiB, %v, work %v; beside them %5d KiB, %v, work %v", p.name, plain[p.name].peak>>10, plain[p.name].took, plain[p.name].work,
			beside[p.name].peak>>10, beside[p.name].took, beside[p.name].work)
		if more := beside[p.name].peak - plain[p.name].peak; more > maxMore {
			t.Errorf("%s takes %d MiB more", p.name, more>>20)
		}
		if more := beside[p.name].work - plain[p.name].work; more > maxWork {
			t.Errorf("%s works %v more", p.name, more)
		}
		if more := beside[p.name].took - plain[p.name].took; more > maxLonger {
			t.Errorf("%s takes %v more", p.name, more)
		}
	}
}

// claiming counts the user's processes whose environment is larger than the kernel allows.
func (a attack) claiming() (n int) {
	pids, err := proc.PIDs()
	if err != nil {
		a.t.Fatal(err)
	}
	for _, pid := range pids {
		if uids, err := proc.UIDs(pid); err != nil || uids[0] != claimant {
			continue
		}
		if file, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid)); err == nil {
			if got, _ := file.ReadAt(make([]byte, 1), 8<<20); got == 1 { // the kernel allows at most 6 MiB
				n++
			}
			file.Close()
		}
	}
	return n
}

// costed are the programs that look at processes, in the order of a job's life. Doctor and reap may exit with 1,
// because a test's node is not in perfect order.
var costed = []struct {
	name  string
	line  []string
	codes string
}{
	{"prolog", nil, "0"}, {"status", []string{"mpsctl", "status"}, "0"}, {"audit", []string{"mpsctl", "audit"}, "01"},
	{"metrics", []string{"mpsctl", "metrics"}, "01"}, {"doctor", []string{"mpsctl", "doctor"}, "01"},
	{"reap", []string{"mpsctl", "reap"}, "01"}, {"epilog", nil, "0"},
}

type cost struct {
	peak       int64
	took, work time.Duration // wall time, and processor time
}

// costs runs each program of a job's life in a control group of its own, and returns what each one costs.
func (a attack) costs(all memoryGroup, job testnode.Job, begin func()) map[string]cost {
	a.t.Helper()
	job.UID, job.GID = claimant, claimant
	begin()
	found := map[string]cost{}
	for _, p := range costed {
		own := all.below(fmt.Sprint(p.name, job.ID))
		line := a.Command(p.name)
		if p.line != nil {
			line = a.Command(p.line[0], p.line[1:]...)
		}
		line = own.inside(line...)
		cmd := exec.CommandContext(a.ctx, line[0], line[1:]...)
		cmd.Dir = "/"
		cmd.Env = os.Environ()
		if p.line == nil {
			cmd.Env = job.Environment(p.name + "_slurmd")
		}
		began := time.Now()
		out, _ := cmd.CombinedOutput()
		found[p.name] = cost{own.peak(), time.Since(began), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
		if code := cmd.ProcessState.ExitCode(); !strings.Contains(p.codes, strconv.Itoa(code)) {
			a.t.Errorf("%s of job %d: code %d: %.2000s", p.name, job.ID, code, out)
		}
	}
	return found
}

// memoryGroup is a control group that limits and counts memory.
type memoryGroup struct {
	t    *testing.T
	path string
	v2   bool
}

// newMemoryGroup makes a memory group with a limit, of the cgroup version that this machine has. The test's end
// removes the group and ends the processes in it.
func newMemoryGroup(t *testing.T, limit int64) memoryGroup {
	t.Helper()
	var refused error
	for _, g := range []memoryGroup{{t, "/sys/fs/cgroup/memory", false}, {t, "/sys/fs/cgroup", true}, {t, "/sys/fs/cgroup/unified", true}} {
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
		g.set("memory.limit_in_bytes", "memory.max", strconv.FormatInt(limit, 10))
		if g.v2 {
			g.set("", "cgroup.subtree_control", "+memory")
		}
		return g
	}
	t.Skipf("cannot make a control group for memory here: %v", refused)
	return memoryGroup{}
}

// set writes a file of the group. The file has one name in version 1 and another one in version 2.
func (g memoryGroup) set(v1, v2, value string) {
	g.t.Helper()
	if g.v2 {
		v1 = v2
	}
	if err := os.WriteFile(filepath.Join(g.path, v1), []byte(value), 0); err != nil {
		g.t.Fatal(err)
	}
}

// below makes a group below this one.
func (g memoryGroup) below(name string) memoryGroup {
	g.t.Helper()
	g.path = filepath.Join(g.path, name)
	if err := os.Mkdir(g.path, 0o755); err != nil {
		g.t.Fatal(err)
	}
	return g
}

// inside returns a command line that runs a program in the group.
func (g memoryGroup) inside(line ...string) []string {
	return append([]string{"/bin/sh", "-c", `echo $$ >` + filepath.Join(g.path, "cgroup.procs") + ` && exec "$@"`, "sh"}, line...)
}

// peak returns the largest amount of memory that was in use at one time. It includes the kernel's memory for these
// processes.
func (g memoryGroup) peak() int64 {
	g.t.Helper()
	return g.number("memory.max_usage_in_bytes", "memory.peak")
}

// used returns the memory that is in use.
func (g memoryGroup) used() int64 {
	g.t.Helper()
	return g.number("memory.usage_in_bytes", "memory.current")
}

// number reads a file of the group. The file has one name in version 1 and another one in version 2.
func (g memoryGroup) number(v1, v2 string) int64 {
	g.t.Helper()
	if g.v2 {
		v1 = v2
	}
	value, err := strconv.ParseInt(strings.TrimSpace(read(g.t, filepath.Join(g.path, v1))), 10, 64)
	if err != nil {
		g.t.Fatal(err)
	}
	return value
}

// remove ends the processes that are left in the group and removes the group.
func (g memoryGroup) remove() {
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
				if stat, err := site.ReadStat(pid); err == nil {
					_ = stat.Kill(unix.SIGKILL)
				}
			}
			err := syscall.Rmdir(group)
			if err == nil || errors.Is(err, syscall.ENOENT) {
				break
			}
			if time.Since(began) > 10*time.Second {
				g.t.Errorf("cannot remove %s: %v", group, err)
				return
			}
		}
	}
}
