// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// Role is what a process of MPS does.
type Role string

// A control daemon, a server, and the control program while it asks something.
const (
	RoleDaemon Role = "daemon"
	RoleServer Role = "server"
	RoleQuery  Role = "asking"
)

// Process is one that bears the name of MPS's programs, whoever's it is.
type Process struct {
	site.Process
	UID     uint32
	Parent  int
	Role    Role
	PipeDir string // "" where Err is set, or the process has the default
	Err     error  // why its folder is not known: another user's process is root's to read
}

// FindAll finds every process of MPS on the node in one pass. Processes that hold up their reader cost it two seconds at
// most, however many they are.
func FindAll(ctx context.Context) ([]Process, error) {
	pids, err := proc.PIDs()
	if err != nil {
		return nil, err
	}
	var found []Process
	var procs []site.Process
	for _, pid := range pids {
		if name, err := proc.Name(pid); err != nil || !strings.HasPrefix(name, comm) {
			continue
		}
		stat, err := site.ReadStat(pid)
		if err != nil || !stat.Process.Running() {
			continue
		}
		if uids, err := proc.UIDs(pid); err == nil {
			found = append(found, Process{Process: stat.Process, UID: uids[0], Parent: stat.Parent})
			procs = append(procs, stat.Process)
		}
	}
	lines, environments := proc.CommandLines(ctx, procs), proc.Environments(ctx, procs, pipeVariable)
	for i := range found {
		found[i].Role = roleOf(program(found[i].PID), lines[i].Args)
		found[i].PipeDir = environments[i].Values[pipeVariable]
		found[i].Err = cmp.Or(environments[i].Err, lines[i].Err)
	}
	// Read again behind the rest, so that all of it is about one process.
	return slices.DeleteFunc(found, func(p Process) bool { return !p.Running() }), nil
}

// program is the file that a process runs, "" where that is not ours to know.
func program(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return filepath.Base(strings.TrimSuffix(path, " (deleted)"))
}

// roleOf tells daemon and server apart, which bear one name: by the file that runs, else by what was typed.
func roleOf(file string, line []string) Role {
	if file == "." && len(line) > 0 { // not readable
		file = filepath.Base(line[0])
	}
	switch {
	case strings.HasPrefix(file, "nvidia-cuda-mps-server"):
		return RoleServer
	case slices.Contains(line, "-d") || slices.Contains(line, "-f"):
		return RoleDaemon
	}
	return RoleQuery
}

// IsServerOf reports whether a process of MPS is a server that a daemon started: its child, from a file that is root's
// own where that can be seen. A process can give itself the name, and not that.
func IsServerOf(p Process, daemon site.Process) bool {
	if p.Role != RoleServer || p.Parent != daemon.PID || !daemon.Running() {
		return false
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d/exe", p.PID))
	if err != nil {
		return true // not ours to see
	}
	return rootsOwn(info)
}

func rootsOwn(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0 && st.Mode&0o022 == 0
}
