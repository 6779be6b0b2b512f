// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// watch is a job whose guard a user attacks.
type watch struct {
	*e2e.Shared
	a      attack
	before map[string]bool // the guard's open files before the first client starts
}

func newWatch(t *testing.T) *watch {
	t.Helper()
	return newWatchOf(t, e2e.UID, e2e.GID)
}

// newWatchOf is newWatch for a job of another user, who has no processes in other tests.
func newWatchOf(t *testing.T, user, group uint32) *watch {
	t.Helper()
	a := newAttack(t, "", 1)
	w := &watch{Shared: e2e.OpenSharedOf(a.Node, user, group), a: a}
	w.before = w.files()
	return w
}

// device returns the path of one of the node's device files.
func (w *watch) device(name string) string { return filepath.Join(w.Sim.Node.Dir, "dev", name) }

// files returns the guard's open files, each with its descriptor.
func (w *watch) files() map[string]bool {
	open := map[string]bool{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.Guard.PID))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			open[filepath.Base(link)+" "+target] = true
		}
	}
	return open
}

// foreign returns the guard's open files that are neither devices nor files that it opened at its start. It leaves
// out files of the kernel, because the guard opens and closes these.
func (w *watch) foreign() (found []string) {
	pipes := 0
	for file := range w.files() {
		_, target, _ := strings.Cut(file, " ")
		if strings.HasPrefix(target, "pipe:") {
			// Six ends exist at the guard's start: of a pipe to gpu-usage, of one from it, and of the fork's pipe.
			if pipes++; pipes <= 6 {
				continue
			}
		}
		device := slices.Contains([]string{w.device("nvidiactl"), w.device("nvidia-uvm")}, target)
		own := w.before[file] || target == "/dev/null" || strings.HasPrefix(target, "/proc") ||
			strings.HasPrefix(target, "/sys/fs/cgroup") || target == "anon_inode:[pidfd]" || strings.HasPrefix(target, w.Paths().Run())
		if !device && !own {
			found = append(found, file)
		}
	}
	return found
}

// group starts an attack. All its processes end with the test.
func (w *watch) group(cmd *exec.Cmd) *exec.Cmd {
	w.T.Helper()
	cmd.SysProcAttr.Setpgid = true
	w.a.goesOn(cmd)
	w.T.Cleanup(func() { _ = node.SignalGroup(cmd, unix.SIGKILL) })
	return cmd
}

// small checks for a while that the guard uses little memory and holds no file that is not a device.
func (w *watch) small(d time.Duration) {
	w.T.Helper()
	var last []string
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if mib := e2e.Resident(w.T, w.Guard.PID); mib > 20 {
			w.T.Fatalf("the guard uses %.1f MiB", mib)
		}
		now := w.foreign()
		for _, file := range now {
			if slices.Contains(last, file) {
				w.T.Fatalf("the guard holds %q open, of %v", file, w.files())
			}
		}
		last = now
	}
}

// computed returns the processor time that a process has used.
func computed(t *testing.T, pid int) time.Duration {
	t.Helper()
	var user, system int
	_, rest, _ := strings.Cut(e2e.Read(t, fmt.Sprintf("/proc/%d/stat", pid)), ") ")
	if fields := strings.Fields(rest); len(fields) > 12 {
		fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// ends checks that the guard ends after SIGTERM, and that the epilog leaves nothing behind.
func (w *watch) ends() {
	w.T.Helper()
	asked := time.Now()
	must.OK(w.T, w.Guard.Kill(unix.SIGTERM))
	w.Gone(w.Guard)
	w.T.Logf("the guard ended %v after SIGTERM", time.Since(asked))
	w.a.withstands(w.Shared.Job, "epilog")
	w.a.emptied() // a process of the user may have had a file open
	w.Clean()
	if size := len(w.Log()); size > 128<<10 {
		w.T.Errorf("the log has %d bytes: want at most 128 KiB", size)
	}
}

// A user keeps the guard busy or tries to deceive it. The neighbours of a client that dies live all the same.
//
// Contract: G3
func TestHostileGuard(t *testing.T) {
	e2e.Alone(t)
	for _, c := range []struct {
		name string
		try  func(w *watch)
	}{
		{"10,000 openings a second", func(w *watch) {
			w.group(w.a.as(e2e.UID, w.a.program, "opens", w.device("nvidia-uvm")))
		}},
		{"1,000 processes", func(w *watch) {
			w.group(w.a.as(e2e.UID, "/bin/sh", "-c", "for i in $(seq 1000); do sleep 900 & done; echo ready; wait"))
		}},
		{"descriptors that change", func(w *watch) {
			other := filepath.Join(e2e.PublicDir(w.T), "nvidia-uvm")
			w.Write(other, "")
			w.group(w.a.as(e2e.UID, w.a.program, "flips", w.device("nvidiactl"), w.device("nvidia-uvm"), other))
			// A change falls between the look and the duplicate only by chance. The next test waits for one.
			wait.Sleep(w.Ctx, 5*time.Second)
			w.T.Logf("the guard saw a change: %v", strings.Contains(w.Log(), "a process changes its files while they are looked at"))
		}},
		{"clients without end", func(w *watch) {
			w.group(w.a.as(e2e.UID, w.a.program, "forks", w.device("nvidiactl"), w.device("nvidia-uvm")))
		}},
		{"a regular file in the device's name", func(w *watch) {
			other := filepath.Join(e2e.PublicDir(w.T), "nvidia-uvm")
			w.Write(other, "")
			w.group(w.a.as(e2e.UID, "/bin/sh", "-c", `exec 5<"$0" 6<"$0" 7<"$0"; echo ready; sleep 900`, other))
		}},
		{"a process in the guard's name", func(w *watch) {
			cmd := w.group(w.a.as(e2e.UID, w.a.named("guard"), "look", "--job", "7", "--root", w.Root+"x"))
			w.T.Cleanup(func() { w.a.lives(cmd.Process.Pid) })
		}},
		{"signals and ptrace", func(w *watch) {
			must.Equal(w.T, "the user may", w.a.does(e2e.UID, w.a.program, "rights", fmt.Sprint(w.Guard.PID)), "")
		}},
		{"events in the log folder", func(w *watch) {
			w.group(w.a.as(e2e.UID, w.a.program, "scribbles", w.Ticket(7).Daemons[0].LogDir))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWatch(t)
			neighbour := w.Neighbour()
			w.Holds(2)
			began := time.Now()
			c.try(w)
			w.small(2 * time.Second)
			victim := w.Start("spin", "-ms", "5", "-queue", "150", "-for", "900")
			wait.Sleep(w.Ctx, 500*time.Millisecond)
			victim.Kill()
			w.small(2 * time.Second)
			t.Logf("the guard has computed for %v in %v", computed(t, w.Guard.PID), time.Since(began))
			w.Lives(neighbour)
			w.ends()
		})
	}
}

// A user's file system never answers a close, and its files take the place of device files just before the guard
// duplicates these. The guard goes on, and it ends when it is asked or killed.
func TestHostileFilesThatDoNotClose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		signal unix.Signal // sent to the guard before the epilog; 0 for none
	}{
		{"the guard is asked to end", 0},
		{"the guard has to be killed", unix.SIGSTOP},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWatch(t)
			neighbour := w.Neighbour()
			victim := w.Start("spin", "-ms", "5", "-queue", "150", "-for", "900")
			w.Holds(4)
			dir, stop := w.a.fileSystem(-1)
			flipping := w.flips(filepath.Join(dir, "file"), stop)
			victim.Kill()
			w.Lives(neighbour)
			if count := strings.Count(fmt.Sprint(w.files()), dir); count > 0 {
				t.Errorf("the guard itself holds %d files of the user", count)
			}
			if c.signal != 0 {
				must.OK(t, w.Guard.Kill(c.signal))
			}
			began := time.Now()
			w.a.withstands(w.Shared.Job, "epilog")
			t.Logf("the epilog took %v", time.Since(began))
			_ = node.SignalGroup(flipping, unix.SIGKILL)
			stop()
			w.Gone(w.Guard)
			w.Clean()
		})
	}
}

// flips lets a user's file take the devices' place until the guard has seen a change. It returns the attack.
func (w *watch) flips(file string, stop func()) (group *exec.Cmd) {
	w.T.Helper()
	for range 10 { // the time between the look and the duplicate is short, so most attempts miss it
		group = w.group(w.a.as(e2e.UID, w.a.program, "flipping", w.device("nvidiactl"), w.device("nvidia-uvm"), file, "300"))
		w.T.Cleanup(stop) // this runs before the cleanup of the attack, which cannot end without it
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if strings.Contains(w.Log(), "a process changes its files while they are looked at") {
				return group
			}
		}
	}
	w.T.Log("the guard saw no change between its look and the duplicate: this run proves little")
	return group
}
