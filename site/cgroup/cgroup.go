// SPDX-License-Identifier: Apache-2.0

// Package cgroup makes the control groups of a job's daemons, and ends all processes that are left in one.
//
// A process that was started in a group, or by a process of the group, stays in the group until it ends. No user can
// make or leave a group. So no process that a user starts through a daemon outlives the job.
package cgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// mounts is where systemd mounts control groups.
const mounts = "/sys/fs/cgroup"

// procs is the file that lists a group's processes. A process joins the group by writing "0" into the file.
const procs = "cgroup.procs"

// Tree is the place of one node's groups. With version 2, it is below the scope of Slurm's step daemons, which has no
// limit and stays if slurmd restarts or stops. Without such a scope, it is below slurmd's own group, in which prologs run.
type Tree struct {
	Run  string // the folder of the node's state; its path distinguishes several nodes on one machine
	Node string // Slurm's name of the node
}

// ErrNone means that the node has no control group hierarchy that can hold a job's processes together.
var ErrNone = errors.New("neither version 2 of control groups nor version 1's freezer is mounted with write access at " + mounts)

// Of returns the folder of the group for a job's n-th daemon. The folder need not exist. Of returns "" if this process
// is in a job's group (PrologFlags=RunInJob), and there is no scope: Slurm itself keeps the job's processes together.
func (t Tree) Of(job uint32, n int) (string, error) {
	mount, self, err := here()
	if err != nil {
		return "", err
	}
	scope := t.scope(mount, self.Path)
	if scope == "" && self.OfAJob() {
		return "", nil
	}
	return filepath.Join(cmp.Or(scope, filepath.Join(mount, self.Path)), t.name(job, strconv.Itoa(n))), nil
}

// OfGuard returns the folder of the group for a job's guard and for what the guard starts. It is "" if these stay in
// the prolog's own group. They may not stay in slurmd's group if Slurm has given it controllers. systemd must then find
// it empty, or slurmd does not start again.
func (t Tree) OfGuard(job uint32) string {
	mount, self, err := here()
	if err != nil {
		return ""
	}
	if scope := t.scope(mount, self.Path); scope != "" {
		return filepath.Join(scope, t.name(job, "guard"))
	}
	return ""
}

func (t Tree) name(job uint32, of string) string {
	return fmt.Sprintf("%s-%d-%s", strings.ReplaceAll(strings.Trim(t.Run, "/"), "/", "-"), job, of)
}

const (
	scopeName = "slurmstepd.scope"
	slice     = "system.slice" // Slurm makes the scope there, wherever slurmd itself is
)

// scope returns the folder of the step daemons' scope, "" if there is none. This process is below it, or below a folder
// that has the scope in it.
func (t Tree) scope(mount, own string) string {
	for dir := own; ; dir = filepath.Dir(dir) {
		if strings.HasSuffix(dir, scopeName) {
			return filepath.Join(mount, dir)
		}
		for _, name := range []string{t.Node + "_" + scopeName, scopeName} { // Slurm's build decides
			for _, path := range []string{filepath.Join(mount, dir, name), filepath.Join(mount, dir, slice, name)} {
				if _, err := os.Stat(filepath.Join(path, procs)); err == nil {
					return path
				}
			}
		}
		if dir == "/" {
			return ""
		}
	}
}

// Mount returns the mount point of the hierarchy for these groups. This is version 2, alone or beside version 1, or
// else version 1's freezer.
func Mount() (string, error) {
	for _, h := range []struct {
		mount string
		kind  int64
	}{
		{mounts, unix.CGROUP2_SUPER_MAGIC}, {mounts + "/unified", unix.CGROUP2_SUPER_MAGIC}, {mounts + "/freezer", unix.CGROUP_SUPER_MAGIC},
	} {
		var st unix.Statfs_t
		if err := unix.Statfs(h.mount, &st); err == nil && st.Type == h.kind && st.Flags&unix.ST_RDONLY == 0 {
			return h.mount, nil
		}
	}
	return "", ErrNone
}

// here returns the mount point and this process's group below it.
func here() (mount string, self proc.ControlGroup, err error) {
	if mount, err = Mount(); err != nil {
		return "", self, err
	}
	groups, err := proc.GroupsOf(os.Getpid())
	if err != nil {
		return "", self, err
	}
	wanted := ""
	if strings.HasSuffix(mount, "/freezer") {
		wanted = "freezer"
	}
	for _, group := range groups {
		if group.Controllers == wanted {
			return mount, group, nil
		}
	}
	return "", self, fmt.Errorf("cannot see own control group: /proc/self/cgroup has no line for %s", mount)
}

// Make makes a group. If the group exists, Make keeps it.
func (Tree) Make(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make control group: %w", err)
	}
	kind, err := os.ReadFile(filepath.Join(dir, "cgroup.type"))
	if err == nil && strings.TrimSpace(string(kind)) != "domain" { // version 1 does not have this file
		_ = unix.Rmdir(dir) // because no lease will name it
		return fmt.Errorf("cannot use control group %s: it is %q, because the group above has threads or controllers of "+
			"its own", dir, strings.TrimSpace(string(kind)))
	}
	return nil
}

// Enter moves this process into a group, unless it is there already.
func Enter(dir string) error {
	_, self, err := here()
	if err != nil || strings.HasSuffix(dir, self.Path) {
		return err
	}
	if err := write(dir, procs, "0"); err != nil {
		return fmt.Errorf("cannot join control group: %w", err)
	}
	return nil
}

// Join opens the file by which a process joins a group.
func Join(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, procs), os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot join control group: %w", err)
	}
	return file, nil
}

// Empty ends every process of a group, removes the group and returns how many processes it ended. A missing group
// counts as empty. The error is a site.LeftInGroupError if processes do not end.
func (Tree) Empty(ctx context.Context, dir string) (ended int, err error) {
	if dir == "" {
		return 0, nil
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		pids, err := Members(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return ended, nil
		case err != nil:
		case len(pids) > 0:
			ended = max(ended, len(pids))
			err = end(dir)
		default:
			if err = unix.Rmdir(dir); err == nil {
				return ended, nil
			}
		}
		if !wait.Sleep(ctx, pause) {
			err = fmt.Errorf("cannot empty control group %s: %d processes are left: %w", dir, len(pids), errors.Join(err, ctx.Err()))
			if len(pids) > 0 {
				err = &site.LeftInGroupError{PIDs: pids, Err: err}
			}
			return ended, err
		}
	}
}

// maxMembers limits the bytes that are read from a group's list. The other processes are read after the first
// processes have ended.
const maxMembers = 64 << 10

// Members returns the pids of a group, or the first of them.
func Members(dir string) (pids []int, err error) {
	content, err := proc.ReadFile(filepath.Join(dir, procs), maxMembers)
	if errors.Is(err, unix.ENODEV) { // removed after it was opened
		return nil, fs.ErrNotExist
	}
	for line := range strings.Lines(string(content)) {
		if pid, err := strconv.Atoi(strings.TrimSuffix(line, "\n")); err == nil && strings.HasSuffix(line, "\n") {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// end sends SIGKILL to all processes of a group at once, so that no process can fork before the signal.
func end(dir string) error {
	err := write(dir, "cgroup.kill", "1") // Linux 5.14, version 2
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return endFrozen(dir)
}

// endFrozen freezes a group, sends SIGKILL to each of its processes and thaws it. Processes of version 1 end only after
// the thaw.
func endFrozen(dir string) error {
	file, frozen, thawed := "cgroup.freeze", "1", "0"
	if _, err := os.Stat(filepath.Join(dir, "freezer.state")); err == nil {
		file, frozen, thawed = "freezer.state", "FROZEN", "THAWED"
	}
	if err := write(dir, file, frozen); err != nil {
		return err
	}
	return errors.Join(signalAll(dir), write(dir, file, thawed))
}

// maxOpen limits the pidfds that are open at once, because a site may give slurmd few descriptors.
const maxOpen = 32

// signalAll sends SIGKILL to the processes of a group.
func signalAll(dir string) error {
	pids, err := Members(dir)
	for some := range slices.Chunk(pids, maxOpen) {
		err = errors.Join(err, signalSome(dir, some))
	}
	return err
}

// signalSome sends SIGKILL to processes of a group. It opens their pidfds before it lists the group a second time. If
// the second list has a pid, and the process of the pidfd lives, that process is proved to be in the group.
func signalSome(dir string, pids []int) (failed error) {
	opened := map[int]int{}
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("cannot open pidfd of pid %d: %w", pid, err))
			continue
		}
		defer unix.Close(fd)
		opened[pid] = fd
	}
	second, err := Members(dir)
	for pid, fd := range opened {
		if !slices.Contains(second, pid) {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = errors.Join(failed, fmt.Errorf("cannot send SIGKILL to pid %d: %w", pid, err))
		}
	}
	return errors.Join(failed, err)
}

func write(dir, name, content string) error {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Close())
}
