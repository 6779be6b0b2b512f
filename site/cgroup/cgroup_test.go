// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/wait"
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
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatal(err)
	}
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

// Of returns a group below this process's own group. It is another group for each node, job and daemon.
func TestOf(t *testing.T) {
	if _, err := Mount(); err != nil {
		t.Skip(err)
	}
	seen := map[string]bool{}
	for _, run := range []string{"/run/slurm-mps", "/tmp/node/run/slurm-mps"} {
		for _, job := range []uint32{7, 77} {
			for n := range 2 {
				dir, err := (Tree{Run: run}).Of(job, n)
				if err != nil || seen[dir] || !strings.HasPrefix(dir, mounts) || strings.Contains(dir, "job_") {
					t.Errorf("%q, %v", dir, err)
				}
				seen[dir] = true
			}
		}
	}
}
