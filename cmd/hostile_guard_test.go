// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// watch is a job whose guard is attacked.
type watch struct {
	*shared
	a      attack
	before map[string]bool // what the guard has open without a client
}

func newWatch(t *testing.T) *watch {
	t.Helper()
	a := newAttack(t, "", 1)
	w := &watch{shared: openShared(a.play), a: a}
	w.before = w.files()
	return w
}

// device is the path of one of the node's device files.
func (w *watch) device(name string) string { return filepath.Join(w.Sim.Node.Dir, "dev", name) }

// files are what the guard has open, each with its descriptor.
func (w *watch) files() map[string]bool {
	open := map[string]bool{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.guard.PID))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			open[filepath.Base(link)+" "+target] = true
		}
	}
	return open
}

// foreign are open files of the guard's that are neither devices nor what it began with. Files of the kernel come and
// go.
func (w *watch) foreign() (found []string) {
	pipes := 0
	for file := range w.files() {
		_, target, _ := strings.Cut(file, " ")
		if strings.HasPrefix(target, "pipe:") {
			if pipes++; pipes <= 6 { // to gpu-usage, from it and of its fork, both ends at its start
				continue
			}
		}
		device := slices.Contains([]string{w.device("nvidiactl"), w.device("nvidia-uvm")}, target)
		own := w.before[file] || target == "/dev/null" || strings.HasPrefix(target, "/proc") || strings.HasPrefix(target, "/sys/fs/cgroup") || target == "anon_inode:[pidfd]" || strings.HasPrefix(target, w.Paths().Run())
		if !device && !own {
			found = append(found, file)
		}
	}
	return found
}

// group starts an attack whose processes all end with the test.
func (w *watch) group(cmd *exec.Cmd) *exec.Cmd {
	w.t.Helper()
	cmd.SysProcAttr.Setpgid = true
	w.a.goesOn(cmd)
	w.t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	return cmd
}

// small holds, for a while, that the guard stays small and keeps nothing that is not a device.
func (w *watch) small(d time.Duration) {
	w.t.Helper()
	var last []string
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if mib := resident(w.t, w.guard.PID); mib > 20 {
			w.t.Fatalf("the guard has %.1f MiB", mib)
		}
		now := w.foreign()
		for _, file := range now {
			if slices.Contains(last, file) {
				w.t.Fatalf("the guard keeps %q of %v", file, w.files())
			}
		}
		last = now
	}
}

// computed is how long a process has computed.
func computed(t *testing.T, pid int) time.Duration {
	t.Helper()
	var user, system int
	_, rest, _ := strings.Cut(read(t, fmt.Sprintf("/proc/%d/stat", pid)), ") ")
	if fields := strings.Fields(rest); len(fields) > 12 {
		fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// ends holds that the guard, asked to end, ends soon, and that the epilog leaves nothing.
func (w *watch) ends() {
	w.t.Helper()
	asked := time.Now()
	if err := w.guard.Kill(unix.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	w.gone(w.guard)
	if took := time.Since(asked); took > slack {
		w.t.Errorf("it ended after %v", took)
	}
	w.a.withstands(w.shared.job, "epilog")
	w.clean()
	if size := len(w.log()); size > 128<<10 {
		w.t.Errorf("the log has %d bytes", size)
	}
}

// What a user does to keep the guard from its work: the neighbours of a client that dies live all the same.
//
// Contract: G3
func TestHostileGuard(t *testing.T) {
	for _, c := range []struct {
		name string
		act  func(w *watch)
	}{
		{"10,000 openings a second", func(w *watch) {
			w.group(w.a.as(uid, w.a.program, "opens", w.device("nvidia-uvm")))
		}},
		{"1,000 processes", func(w *watch) {
			w.group(w.a.as(uid, "/bin/sh", "-c", "for i in $(seq 1000); do sleep 90 & done; echo ready; wait"))
		}},
		{"descriptors that change", func(w *watch) {
			other := filepath.Join(publicDir(w.t), "nvidia-uvm")
			w.write(other, "")
			w.group(w.a.as(uid, w.a.program, "flips", w.device("nvidiactl"), w.device("nvidia-uvm"), other))
			site.Sleep(w.ctx, 5*time.Second) // a change in the moment of the look is luck; the next test has one
			w.t.Logf("a change was met: %v", strings.Contains(w.log(), "a process changes its files while they are looked at"))
		}},
		{"clients without end", func(w *watch) {
			w.group(w.a.as(uid, w.a.program, "forks", w.device("nvidiactl"), w.device("nvidia-uvm")))
		}},
		{"a regular file in the device's name", func(w *watch) {
			other := filepath.Join(publicDir(w.t), "nvidia-uvm")
			w.write(other, "")
			w.group(w.a.as(uid, "/bin/sh", "-c", `exec 5<"$0" 6<"$0" 7<"$0"; echo ready; sleep 90`, other))
		}},
		{"a process in the guard's name", func(w *watch) {
			cmd := w.group(w.a.as(uid, w.a.named("guard"), "look", "--job", "7", "--root", w.Root+"x"))
			w.t.Cleanup(func() { w.a.lives(cmd.Process.Pid) })
		}},
		{"signals and ptrace", func(w *watch) {
			if out := w.a.does(uid, w.a.program, "rights", fmt.Sprint(w.guard.PID)); out != "" {
				w.t.Errorf("the user may:\n%s", out)
			}
		}},
		{"events in the log folder", func(w *watch) {
			w.group(w.a.as(uid, w.a.program, "scribbles", w.ticket(7).Daemons[0].LogDir))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWatch(t)
			neighbour := w.neighbour()
			w.holds(2, slack)
			began := time.Now()
			c.act(w)
			w.small(2 * time.Second)
			victim := w.start("spin", "-ms", "5", "-queue", "150", "-for", "60")
			site.Sleep(w.ctx, 500*time.Millisecond)
			victim.kill()
			w.small(2 * time.Second)
			t.Logf("the guard has computed for %v in %v", computed(t, w.guard.PID), time.Since(began))
			w.lives(neighbour)
			w.ends()
		})
	}
}

// A user's file system that never answers a close: its files are at a device's descriptors at the moment of the look,
// and the guard receives some. It goes on, and ends, when it is killed too.
func TestHostileFilesThatDoNotClose(t *testing.T) {
	for _, c := range []struct {
		name   string
		signal unix.Signal // to the guard before the epilog
	}{
		{"the guard is asked to end", 0},
		{"the guard has to be killed", unix.SIGSTOP},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWatch(t)
			neighbour := w.neighbour()
			victim := w.start("spin", "-ms", "5", "-queue", "150", "-for", "60")
			w.holds(4, slack)
			dir, stop := w.a.fileSystem(-1)
			flipping := w.flips(filepath.Join(dir, "file"), stop)
			victim.kill()
			w.lives(neighbour)
			if count := strings.Count(fmt.Sprint(w.files()), dir); count > 0 {
				t.Errorf("the guard itself has %d files of the user's", count)
			}
			if c.signal != 0 {
				if err := w.guard.Kill(c.signal); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			w.a.withstands(w.shared.job, "epilog")
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("the epilog took %v", took)
			}
			_ = syscall.Kill(-flipping, syscall.SIGKILL)
			stop()
			w.gone(w.guard)
			w.clean()
		})
	}
}

// flips has a file of a user's take the devices' places until the guard has met it, and returns the attack's group.
func (w *watch) flips(file string, stop func()) (group int) {
	w.t.Helper()
	for range 10 { // the moment between the look and the duplicate is short: most attacks miss it
		group = w.group(w.a.as(uid, w.a.program, "flipping", w.device("nvidiactl"), w.device("nvidia-uvm"), file)).Process.Pid
		w.t.Cleanup(stop) // before the attack, which cannot end without it
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if strings.Contains(w.log(), "a process changes its files while they are looked at") {
				return group
			}
		}
	}
	w.t.Log("no change was met in the moment of the look: the rest shows little")
	return group
}
