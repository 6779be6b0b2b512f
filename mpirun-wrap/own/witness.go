// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// pipeVariable tells a program where its daemon is. All that a rank starts has it, unless it is taken away.
const pipeVariable = "CUDA_MPS_PIPE_DIRECTORY"

// The time between two looks for what is left of the ranks. It doubles while only processes in the background are left,
// because a look reads the environments of all the user's processes.
const firstLook, lastLook = 100 * time.Millisecond, 2 * time.Second

// leftBehind reports whether a process with the variables of this step's daemon lives. A rank may have started it in
// the background, in a session of its own and without the lock's file, and it may open CUDA at any time.
func (k *keeper) leftBehind() bool {
	var procs []proc.Process
	_ = proc.EachPID(func(pid int) bool {
		uid, ok := proc.Owner(pid)
		name, err := proc.Name(pid)
		ours := pid == os.Getpid() || pid == os.Getppid() || strings.HasPrefix(name, "nvidia-cuda-mps")
		if ok && uid == k.job.UID && err == nil && !ours {
			procs = append(procs, proc.Process{PID: pid})
		}
		return true
	})
	found, unknown := k.have(procs)
	for _, line := range proc.CommandLines(context.Background(), unknown) {
		// In the middle of an exec: the next look shows more.
		found = found || errors.Is(line.Err, proc.ErrLate) || line.Err == nil && line.Args[0] == ""
	}
	if !found {
		found, _ = k.have(unknown) // those that still have no environment never had one
	}
	return found
}

// have reports whether one of some processes has the daemon's variable. Of the unknown ones, the environment is empty,
// or does not come in time. They may be in the middle of an exec.
func (k *keeper) have(procs []proc.Process) (found bool, unknown []proc.Process) {
	for i, e := range proc.Environments(context.Background(), procs, pipeVariable) {
		if e.Values[pipeVariable] == k.folders.PipeDir {
			return true, nil
		}
		if errors.Is(e.Err, proc.ErrOverwritten) && k.mayBeLeft(procs[i].PID) {
			return true, nil
		}
		if !e.Empty && !errors.Is(e.Err, proc.ErrLate) {
			continue
		}
		status, err := proc.ReadStatus(procs[i].PID)
		if err == nil && status.State != 'Z' && status.Parent != os.Getpid() { // the keeper's own have no variables
			unknown = append(unknown, procs[i])
		}
	}
	return false, unknown
}

// mayBeLeft reports whether a rank may have left a process whose environment is overwritten: the rank began when its
// daemon did, or later, and a process that is left has a new parent. A later login has its own.
func (k *keeper) mayBeLeft(pid int) bool {
	daemon := k.process.Load()
	for range maxAncestors {
		stat, err := proc.ReadStat(pid)
		if err != nil || !stat.Running() || daemon != nil && stat.Start < daemon.Start {
			return false
		}
		if name, _ := proc.Name(stat.Parent); stat.Parent <= 1 || name == "systemd" || name == "slurmstepd" {
			return true
		}
		if uid, ok := proc.Owner(stat.Parent); !ok || uid != k.job.UID {
			return false
		}
		pid = stat.Parent
	}
	return false
}

// unguarded reports whether the ranks are told that a process cannot be guarded: if it is a client of their daemon, and
// no line at their start has told them.
func (k *keeper) unguarded(p proc.Process, why error, certain bool) bool {
	if errors.Is(why, unix.EPERM) && scope() != 0 {
		return false
	}
	if slices.ContainsFunc(k.registered(), func(r rank) bool { return r.Hidden && r.Process == p }) {
		return false
	}
	if certain || k.process.Load() == nil {
		return certain
	}
	clients, _ := k.askClients()
	return slices.ContainsFunc(clients, func(c site.Client) bool { return c.PID == p.PID })
}

// outside returns why a process that computes without MPS does so, "" if it is not a process of this step, or a client
// of another daemon.
func (k *keeper) outside(p proc.Process) string {
	environment := proc.Variables(context.Background(), p, pipeVariable)
	for errors.Is(environment.Err, proc.ErrLate) && alive(p) {
		time.Sleep(lastLook)
		environment = proc.Variables(context.Background(), p, pipeVariable)
	}
	value, set := environment.Values[pipeVariable]
	switch {
	case environment.Err != nil && !errors.Is(environment.Err, proc.ErrOverwritten):
		return ""
	case value == k.folders.PipeDir:
		return "its container does not show it " + k.folder.Name() + ": bind " + filepath.Dir(k.folder.Name()) + " there"
	case set && isSocket(filepath.Join(value, "control")):
		return ""
	}
	switch ranks := k.registered(); {
	case startedBy(ranks, p.PID, func(r rank, s proc.Stat) bool { return r.Process == s.Process }):
		return "what starts it (env -i, a container) must keep " + pipeVariable
	case startedBy(ranks, p.PID, func(r rank, s proc.Stat) bool { return r.Launcher == s.PID }):
		return "a launcher starts it beside these ranks, as MPI_Comm_spawn does: put mpirun-wrap --own before its program"
	}
	return ""
}

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeSocket != 0
}

// startedBy reports whether a process or an ancestor is the process, or the launcher, of one of some ranks.
func startedBy(ranks []rank, pid int, is func(rank, proc.Stat) bool) bool {
	for range maxAncestors {
		stat, err := proc.ReadStat(pid)
		if err != nil || pid <= 1 {
			return false
		}
		if slices.ContainsFunc(ranks, func(r rank) bool { return is(r, stat) }) {
			return true
		}
		pid = stat.Parent
	}
	return false
}

// maxAncestors is above the depth of any launcher's processes.
const maxAncestors = 64
