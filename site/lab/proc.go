// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

// process is a process that belongs to a cluster.
type process struct {
	proc.Process
	name string // comm
	jobs bool   // a step daemon, a job's process or a hook; stopping the cluster must end it
}

func (p process) String() string { return fmt.Sprintf("%s (pid %d)", p.name, p.PID) }

// members finds the processes of the cluster below dir. A member has the cluster's SLURM_CONF, or it has its program,
// its working directory or an open file below dir. Processes older than the cluster, zombies, and this process with
// its ancestors are not members. A process without any of these properties cannot be recognised.
func members(dir string, since uint64) ([]process, error) {
	pids, err := proc.PIDs()
	if err != nil {
		return nil, err
	}
	mine := ancestors()
	var found []process
	for _, pid := range pids {
		if mine[pid] {
			continue
		}
		// A process that ends during the check gives an error or looks empty. It is then no member.
		if p, ok := member(pid, dir, since); ok {
			found = append(found, p)
		}
	}
	return found, nil
}

func member(pid int, dir string, since uint64) (process, bool) {
	stat, err := proc.StatNow(pid)
	if err != nil || stat.State == 'Z' || stat.State == 'X' || stat.Start < since {
		return process{}, false
	}
	name, err := proc.Name(pid)
	if err != nil {
		return process{}, false
	}
	p := process{Process: stat.Process, name: name}
	env := proc.Variables(context.Background(), p.Process, "SLURM_CONF", "SLURM_JOB_ID").Values
	holds := holdsBelow(pid, dir)
	configured := env["SLURM_CONF"] == confPath(dir)
	_, inJob := env["SLURM_JOB_ID"]
	p.jobs = holds && strings.HasPrefix(name, "slurmstepd") || configured && inJob
	return p, holds || configured
}

// holdsBelow reports whether a process has its program, its working directory or an open file below dir.
func holdsBelow(pid int, dir string) bool {
	root := fmt.Sprintf("/proc/%d", pid)
	links := []string{root + "/exe", root + "/cwd"}
	fds, _ := os.ReadDir(root + "/fd")
	for _, fd := range fds {
		links = append(links, filepath.Join(root, "fd", fd.Name()))
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && (target == dir || strings.HasPrefix(target, dir+"/")) {
			return true
		}
	}
	return false
}

// ancestors returns this process, its parent, and so on.
func ancestors() map[int]bool {
	found := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !found[pid]; {
		found[pid] = true
		stat, err := proc.StatNow(pid)
		if err != nil {
			break
		}
		pid = stat.Parent
	}
	return found
}

// kill ends a process with SIGKILL if the pid still belongs to that process.
func kill(p proc.Process) error { return Heard(func() error { return p.Kill(unix.SIGKILL) }) }

// bootTicks returns the current time in the unit of a process's start time: a hundredth of a second since the boot.
// The unit is USER_HZ, which is 100 on every architecture that has NVIDIA GPUs.
func bootTicks() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("cannot read the clock: %w", err)
	}
	return uint64(now.Nano() / 1e7), nil
}
