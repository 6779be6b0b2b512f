// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

// role is the role of a process of MPS.
type role string

// The roles: a control daemon, a server, and the control program while it asks a question.
const (
	RoleDaemon role = "daemon"
	RoleServer role = "server"
	RoleQuery  role = "asking"
)

// Process is a process of any user that has the name of MPS's programs.
type Process struct {
	proc.Process
	UID     uint32
	Parent  int
	Role    role
	PipeDir string // "" if Err is set, or the process uses the default
	Err     error  // why the folder is unknown: only root can read another user's process

	rootsProgram bool // it runs a file of root's, as far as this process may see that
}

// findTime limits FindAll, and a third of it limits the first look at the processes.
const findTime = 1500 * time.Millisecond

// FindAll finds all processes of MPS on the node in one pass. All processes that delay their readers cost 1.5 seconds
// at most together. A process that does not answer is not found: proc.Silence describes these.
func FindAll(ctx context.Context) ([]Process, error) {
	ctx, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	pids, err := proc.PIDs()
	if err != nil {
		return nil, err
	}
	pids = slices.DeleteFunc(pids, func(pid int) bool {
		name, err := proc.Name(pid)
		return err != nil || !strings.HasPrefix(name, comm)
	})
	found, procs := living(ctx, pids)
	programs, lines := proc.Programs(ctx, procs), proc.CommandLines(ctx, procs)
	environments := proc.Environments(ctx, procs, pipeVariable)
	runs := proc.Ran(procs)
	all := found[:0]
	for i, p := range found {
		p.Role, p.rootsProgram = roleOf(programs[i].Path, lines[i].Args), programs[i].Path == "" || programs[i].RootsOwn
		p.PipeDir, p.Err = environments[i].Values[pipeVariable], cmp.Or(environments[i].Err, lines[i].Err)
		if runs[i] { // the start time is read again after the rest, so all of it is about one process
			all = append(all, p)
		}
	}
	return all, nil
}

// living returns the processes that live and answer.
func living(ctx context.Context, pids []int) (found []Process, procs []proc.Process) {
	ctx, cancel := context.WithTimeout(ctx, findTime/3)
	defer cancel()
	for i, stat := range proc.ReadStats(ctx, pids) {
		uids, err := proc.UIDs(pids[i])
		if stat.Err == nil && err == nil && stat.Running() {
			found = append(found, Process{Process: stat.Process, UID: uids[0], Parent: stat.Parent})
			procs = append(procs, stat.Process)
		}
	}
	return found, procs
}

// roleOf distinguishes daemon and server, which have the same name. It uses the file that runs, or else the
// arguments.
func roleOf(file string, line []string) role {
	if file == "" && len(line) > 0 { // not readable
		file = line[0]
	}
	file = filepath.Base(file)
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
func IsServerOf(p Process, daemon proc.Process) bool {
	return p.Role == RoleServer && p.Parent == daemon.PID && p.rootsProgram && daemon.Running()
}
