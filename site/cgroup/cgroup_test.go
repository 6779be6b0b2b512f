// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// hierarchies are the mounts on this machine in which groups can be made, each with the function that ends a group.
func hierarchies(t *testing.T) map[string]func(string) error {
	t.Helper()
	must.Root(t)
	each := map[string]func(string) error{}
	if mount, err := Mount(); err == nil {
		each[mount] = end
		each[mount+"/."] = endFrozen // as if cgroup.kill were missing
	}
	if _, err := os.Stat(mounts + "/freezer/" + procs); err == nil {
		each[mounts+"/freezer"] = end
	}
	if len(each) == 0 {
		t.Skip("this machine has no control groups")
	}
	return each
}

// begin starts a shell in a group.
func begin(t *testing.T, dir, script string) *exec.Cmd {
	t.Helper()
	file, err := Join(dir)
	must.OK(t, err)
	defer file.Close()
	cmd := exec.Command("/bin/sh", "-c", "echo 0 >&3 && exec 3>&- && "+script)
	cmd.ExtraFiles = []*os.File{file}
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	must.Get(fmt.Fscanln(out, new(string)))(t)
	go cmd.Wait()
	return cmd
}

// A process that forks without end, each child in its own session, is ended with all children, even if they ignore
// signals.
func TestAGroupIsEmptied(t *testing.T) {
	for mount, end := range hierarchies(t) {
		t.Run(strings.ReplaceAll(mount, "/", "_"), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			dir := filepath.Join(mount, fmt.Sprintf("slurm-mps-test-%d", os.Getpid()))
			must.OK(t, (Tree{}).Make(dir))
			begin(t, dir, "trap '' TERM INT HUP; echo in; while :; do setsid sleep 60 & sleep 0.02; done")
			t.Cleanup(func() { _, _ = (Tree{}).Empty(context.Background(), dir) })
			before, err := Members(dir)
			for err == nil && len(before) < 5 && wait.Sleep(ctx, 10*time.Millisecond) {
				before, err = Members(dir)
			}
			if err != nil || len(before) < 5 {
				t.Fatalf("the group has the processes %v: %v", before, err)
			}
			must.OK(t, end(dir))
			if ended, err := (Tree{}).Empty(ctx, dir); err != nil {
				t.Fatalf("%d ended: %v", ended, err)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("the group's folder: %v", err)
			}
			for _, pid := range before {
				if stat, err := proc.ReadStat(pid); err == nil && stat.Running() && strings.Contains(comm(pid), "sleep") {
					t.Errorf("pid %d lives", pid)
				}
			}
		})
	}
}

func comm(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return string(name)
}

func TestNoGroupIsEmpty(t *testing.T) {
	for _, dir := range []string{"", "/sys/fs/cgroup/none/of/this"} {
		if ended, err := (Tree{}).Empty(t.Context(), dir); ended != 0 || err != nil {
			t.Errorf("%q: %d, %v", dir, ended, err)
		}
	}
}

// If a group cannot be emptied, Empty returns an error at the deadline. Here another group below the group prevents
// its removal.
func TestAGroupThatStays(t *testing.T) {
	for mount := range hierarchies(t) {
		dir := filepath.Join(mount, fmt.Sprintf("slurm-mps-stays-%d", os.Getpid()))
		below := filepath.Join(dir, "below")
		must.OK(t, os.MkdirAll(below, 0o755))
		t.Cleanup(func() { _, _ = os.Remove(below), os.Remove(dir) })
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := (Tree{}).Empty(ctx, dir)
		cancel()
		if err == nil || !strings.HasPrefix(err.Error(), "cannot empty control group "+dir) {
			t.Errorf("%s: %v", mount, err)
		}
	}
}

// Each node, job and daemon has another group, which is no job's. Without the scope of Slurm's step daemons, it is below
// this process's own group, and a guard has none.
func TestOf(t *testing.T) {
	if _, err := Mount(); err != nil {
		t.Skip(err)
	}
	seen := map[string]bool{}
	for _, run := range []string{"/run/slurm-mps", "/tmp/node/run/slurm-mps"} {
		for _, job := range []uint32{7, 77} {
			tree := Tree{Run: run, Node: "no-such-node"}
			for n := range 2 {
				dir, err := tree.Of(job, n)
				if err != nil || seen[dir] || !strings.HasPrefix(dir, mounts) || strings.Contains(dir, "job_") {
					t.Errorf("%q, %v", dir, err)
				}
				seen[dir] = true
			}
			if dir := tree.OfGuard(job); dir != "" && filepath.Base(filepath.Dir(dir)) != scopeName {
				t.Errorf("a guard's group %q", dir)
			}
		}
	}
}

// The scope of the step daemons is found from slurmd's unit, from the scope itself and from a job in it. The scope of
// another node does not count.
func TestScope(t *testing.T) {
	mount := t.TempDir()
	for _, group := range []string{"system.slice/n1_slurmstepd.scope", "system.slice/n2_slurmstepd.scope", "box/system.slice/slurmstepd.scope"} {
		must.OK(t, os.MkdirAll(filepath.Join(mount, group), 0o755))
		must.OK(t, os.WriteFile(filepath.Join(mount, group, procs), nil, 0o644))
	}
	for own, want := range map[string]string{
		"/system.slice/slurmd.service":             "/system.slice/n1_slurmstepd.scope",
		"/system.slice/slurmd.service/slurmd":      "/system.slice/n1_slurmstepd.scope", // since 25.11.7
		"/hpc.slice/slurmd.service":                "/system.slice/n1_slurmstepd.scope",
		"/":                                        "/system.slice/n1_slurmstepd.scope",
		"/system.slice/n2_slurmstepd.scope/slurmd": "/system.slice/n2_slurmstepd.scope",
		"/system.slice/n1_slurmstepd.scope/job_7/step_extern/x": "/system.slice/n1_slurmstepd.scope",
		"/box/system.slice/slurmd.service":                      "/box/system.slice/slurmstepd.scope",
	} {
		if got := (Tree{Node: "n1"}).scope(mount, own); got != filepath.Join(mount, want) {
			t.Errorf("%s: %q", own, got)
		}
	}
	for _, own := range []string{"/", "/system.slice/slurmd.service"} {
		if got := (Tree{Node: "n3"}).scope(mount, own); got != "" {
			t.Errorf("without a scope, %s: %q", own, got)
		}
	}
}

// A process that is in the first list of a group and not in the second one gets no signal, because its pid may be
// another process's by now.
//
// Contract: I2, D5
func TestAProcessThatLeftTheGroup(t *testing.T) {
	start := func() *exec.Cmd {
		cmd := exec.Command("/bin/sleep", "60")
		must.OK(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	stays, left := start(), start()
	dir := t.TempDir()
	list := filepath.Join(dir, procs)
	if err := unix.Mkfifo(list, 0o600); err != nil { // so that the first read gets another list than the second
		t.Fatal(err)
	}
	second := filepath.Join(dir, "second")
	must.OK(t, os.WriteFile(second, fmt.Appendf(nil, "%d\n", stays.Process.Pid), 0o600))
	listed := make(chan error, 1)
	go func() {
		first, err := os.OpenFile(list, os.O_WRONLY, 0) // when the first read has begun
		if err == nil {
			_, err = fmt.Fprintf(first, "%d\n%d\n", stays.Process.Pid, left.Process.Pid)
			err = errors.Join(err, os.Rename(second, list), first.Close())
		}
		listed <- err
	}()
	must.OK(t, signalAll(dir))
	must.OK(t, <-listed)
	if err := stays.Wait(); err == nil || stays.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("the process of the group: %v", err)
	}
	_ = left.Process.Signal(unix.SIGTERM) // later than a SIGKILL
	if _ = left.Wait(); left.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGTERM {
		t.Errorf("the process that left the group: %v", left.ProcessState)
	}
}

// A group that cannot hold a daemon's processes together is refused and removed.
//
// Contract: D5
func TestAThreadedGroupIsNotUsed(t *testing.T) {
	kinds := map[string]bool{"domain": true, "threaded": false, "domain invalid": false, "domain threaded": false}
	for kind, want := range kinds {
		dir := filepath.Join(t.TempDir(), "group")
		must.OK(t, os.Mkdir(dir, 0o755))
		must.OK(t, os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte(kind+"\n"), 0o644))
		if err := (Tree{}).Make(dir); (err == nil) != want {
			t.Errorf("%q: %v", kind, err)
		}
	}
}

// A group has used what the kernel cannot reclaim, in both versions of control groups.
func TestMemory(t *testing.T) {
	for _, c := range []struct {
		name        string
		files       map[string]string
		limit, used uint64
		ok          bool
	}{
		{"version 2", map[string]string{"memory.max": "1000\n", "memory.current": "900\n", "memory.stat": "anon 600\nfile 300\nshmem 100\n"}, 1000, 700, true},
		{"version 2 without a limit", map[string]string{"memory.max": "max\n", "memory.current": "900\n"}, 0, 900, false},
		{"version 1", map[string]string{"memory.limit_in_bytes": "1000\n", "memory.usage_in_bytes": "900\n",
			"memory.stat": "cache 1\ntotal_cache 300\ntotal_shmem 300\n"}, 1000, 900, true},
		{"version 1 without a limit", map[string]string{"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "900\n"}, 0, 900, false},
		{"without statistics", map[string]string{"memory.max": "1000", "memory.current": "900"}, 1000, 900, true},
		{"more cache than used", map[string]string{"memory.max": "1000", "memory.current": "10", "memory.stat": "file 300\n"}, 1000, 0, true},
		{"empty", nil, 0, 0, false},
		{"no numbers", map[string]string{"memory.max": "x", "memory.current": "-1"}, 0, 0, false},
	} {
		folder := t.TempDir()
		for name, content := range c.files {
			must.OK(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644))
		}
		if limit, used, ok := Memory(folder); ok && limit != c.limit || used != c.used || ok != c.ok {
			t.Errorf("%s: %d, %d, %v", c.name, limit, used, ok)
		}
	}
}
