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

// Role is the role of a process of MPS.
type Role string

// The roles: a control daemon, a server, and the control program while it asks a question.
const (
	RoleDaemon Role = "daemon"
	RoleServer Role = "server"
	RoleQuery  Role = "asking"
)

// Process is a process of any user that has the name of MPS's programs.
type Process struct {
	site.Process
	UID     uint32
	Parent  int
	Role    Role
	PipeDir string // "" if Err is set, or the process uses the default
	Err     error  // why the folder is unknown: only root can read another user's process
}

// FindAll finds all processes of MPS on the node in one pass. All processes that delay their
// readers cost two seconds at most together.
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
	// The start time is read again after the rest, so all of it is about one process.
	return slices.DeleteFunc(found, func(p Process) bool { return !p.Running() }), nil
}

// program returns the name of the file that a process runs. It is "." if this process may not read the link.
func program(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return filepath.Base(strings.TrimSuffix(path, " (deleted)"))
}

// roleOf distinguishes daemon and server, which have the same name. It uses the file that runs, or else the
// arguments.
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

// IsServerOf reports whether a process is a server that a daemon started. A server is the daemon's child and runs a
// file of root's, if this process can see the file. A process can give itself a server's name, but neither of these.
func IsServerOf(p Process, daemon site.Process) bool {
	if p.Role != RoleServer || p.Parent != daemon.PID || !daemon.Running() {
		return false
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d/exe", p.PID))
	if err != nil {
		return true // this process may not see it
	}
	return rootsOwn(info)
}

func rootsOwn(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0 && st.Mode&0o022 == 0
}
