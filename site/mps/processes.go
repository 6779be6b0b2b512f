// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// pipeVariable is the variable by which a daemon, its servers and its clients find each other.
const pipeVariable = "CUDA_MPS_PIPE_DIRECTORY"

// comm is the kernel's name for both daemon and server, cut at 15 bytes.
const comm = "nvidia-cuda-mps"

// maxPasses limits how often the processes are listed for one answer.
const maxPasses = 10

// Processes finds a daemon and its servers: processes of the job's user that have MPS's name and the daemon's pipe
// folder in their environment. A user can make such a process, too. It is then ended with the others, because it is
// the user's own and claims to belong to this job.
//
// The list is valid beside an error, too: the error may be that the daemon's end is not proved.
//
// A list of processes is outdated when it is read. A process that has ended since then may have left a child that is
// not in the list; the program that starts a daemon does that. So the processes are listed again until none has ended
// unseen.
func (c ControlProgram) Processes(job lease.Job, d lease.Daemon) ([]proc.Process, error) {
	var processes []proc.Process
	seen := map[int]bool{}
	s := newSearch(job.UID, d)
	for range maxPasses {
		pids, err := proc.PIDs()
		if err != nil {
			return nil, err
		}
		unseen := slices.DeleteFunc(pids, func(pid int) bool { return seen[pid] })
		missed := false
		for i, c := range s.at(unseen) {
			seen[unseen[i]] = c.relation != undecided
			missed = missed || c.relation == gone || c.relation == undecided
			if c.relation == member {
				processes = append(processes, c.proc)
			}
		}
		if !missed {
			break
		}
	}
	return processes, provedEnded(job, d)
}

// provedEnded returns an error if a daemon without a control group may still run, because the process with its pid
// does not answer. A daemon with a control group ends with the group at the latest.
func provedEnded(job lease.Job, d lease.Daemon) error {
	if d.Group != "" || d.Proc.PID == 0 || !runBy(d.Proc.PID, job.UID) {
		return nil
	}
	if _, err := proc.ReadStat(d.Proc.PID); errors.Is(err, proc.ErrSilent) {
		return fmt.Errorf("cannot see whether the daemon of %s has ended: uid %d has its pid: %w", d.PipeDir, job.UID, err)
	}
	return nil
}

// relation is the relation of a process to a daemon.
type relation int

const (
	unrelated relation = iota
	member
	gone      // it ended before it was read
	undecided // it is about to exec, so it has no environment for a moment
)

// candidate is a process and its relation to the daemon.
type candidate struct {
	proc     proc.Process
	relation relation
}

// search finds the daemons and servers of a pipe folder and a user. It reads environments from the processes' memory,
// which may be slow, so all reads together have one second.
type search struct {
	uid    uint32
	daemon lease.Daemon
	until  time.Time
}

const (
	lookTime    = time.Second
	minLookTime = 20 * time.Millisecond // for processes found after that
)

func newSearch(uid uint32, d lease.Daemon) search { return search{uid, d, time.Now().Add(lookTime)} }

// at returns the relation of each process. A member is a living daemon or server of the pipe folder that runs as the
// user with all its uids. So a set-user-id program that the user started under such a name is not a member. The start
// time is read before the rest and again after it, so all of it is about one process. A process whose memory cannot
// be read is unrelated, because no daemon of ours refuses that.
func (s search) at(pids []int) []candidate {
	all := make([]candidate, len(pids))
	var ours, others []int // indices; the daemon's own processes are read first, so that no other can use up the time
	for i, pid := range pids {
		switch all[i].relation = s.quickCheck(pid); {
		case all[i].relation != member:
		case pid == s.daemon.Proc.PID || startedBy(pid, s.daemon):
			ours = append(ours, i)
		default:
			others = append(others, i)
		}
	}
	s.read(pids, ours, all)
	s.read(pids, others, all)
	return all
}

// read finds the relations of the processes with these indices. A process that does not answer is unrelated.
func (s search) read(pids, indices []int, all []candidate) {
	if len(indices) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(time.Until(s.until), minLookTime))
	defer cancel()
	named := make([]int, len(indices))
	for k, i := range indices {
		named[k] = pids[i]
	}
	half, stop := context.WithTimeout(ctx, time.Until(s.until)/2)
	defer stop()
	var procs []proc.Process
	var asked []int
	for k, stat := range proc.ReadStats(half, named) {
		switch i := indices[k]; {
		case errors.Is(stat.Err, proc.ErrSilent):
			all[i].relation = unrelated
		case stat.Err != nil:
			all[i].relation = gone
		default:
			procs, asked = append(procs, stat.Process), append(asked, i)
		}
	}
	environments := proc.Environments(ctx, procs, pipeVariable)
	for k, runs := range proc.Ran(procs) {
		all[asked[k]] = candidate{procs[k], s.relationOf(procs[k], environments[k], runs)}
	}
}

// quickCheck checks the user and the name, which is cheap. A process that has changed its uid and not yet run its
// program belongs to root, for example our own child between fork and exec.
func (s search) quickCheck(pid int) relation {
	uid, ok := proc.Owner(pid)
	if !ok {
		return gone
	}
	if uid != s.uid && uid != 0 {
		return unrelated
	}
	name, err := proc.Name(pid)
	if err != nil {
		return gone
	}
	if !strings.HasPrefix(name, comm) {
		return unrelated
	}
	return member
}

// hasName reports whether a process lives and may be a member by its name and user.
func (s search) hasName(pid int) bool {
	status, err := proc.ReadStatus(pid)
	return err == nil && status.Running() && s.quickCheck(pid) == member
}

// startedBy reports whether a process is the daemon's child or in its session, which no other process can join.
func startedBy(pid int, d lease.Daemon) bool {
	if d.Proc.PID == 0 {
		return false
	}
	status, err := proc.ReadStatus(pid)
	session, err2 := unix.Getsid(pid)
	return err == nil && status.Parent == d.Proc.PID || err2 == nil && session == d.Proc.PID
}

// relationOf judges a process by its environment, and by whether it still ran after that was read.
func (s search) relationOf(p proc.Process, environment proc.Environment, runs bool) relation {
	switch err := environment.Err; {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, proc.ErrLate), errors.Is(err, proc.ErrLong),
		errors.Is(err, proc.ErrOverwritten):
		return unrelated
	case err != nil || !runs:
		return gone
	case environment.Empty:
		return undecided
	case environment.Values[pipeVariable] != s.daemon.PipeDir, !runBy(p.PID, s.uid):
		return unrelated
	}
	return member
}

// runBy reports whether all four uids of a process are uid.
func runBy(pid int, uid uint32) bool {
	uids, err := proc.UIDs(pid)
	return err == nil && uids == [4]uint32{uid, uid, uid, uid}
}

// maxRounds limits Kill. Only a daemon starts a server, and no daemon is left after the first round. The second round
// finds what was started during the first.
const maxRounds = 10

const (
	// lookalikeTimeout is the time for a killed process to end that is not proved to be the daemon's, and a third of
	// the remaining time at most. Its user may keep it from ending, and a server without its daemon may have much
	// memory to free.
	lookalikeTimeout = 10 * time.Second
	// leftTimeout is the time for a process to end that could not be killed but may end with a killed one.
	leftTimeout = time.Second
)

// Kill kills all processes of a daemon and waits until they have ended; an error names those that remain. Servers end
// with their daemon (measured), and are killed all the same. The error is site.ErrImpostors if the daemon and its
// servers have ended, but processes that only look like them keep appearing or do not end.
func (c ControlProgram) Kill(ctx context.Context, job lease.Job, d lease.Daemon) error {
	until := time.Now().Add(wait.AtMostThird(ctx, lookalikeTimeout))
	for round := range maxRounds {
		if round > 1 && time.Now().After(until) { // two rounds find all processes of the daemon
			break
		}
		processes, err := c.livingProcesses(job, d)
		if len(processes) == 0 {
			return err
		}
		genuine, impostors := sorted(processes, d)
		var refused error
		for _, p := range processes {
			refused = errors.Join(refused, p.Kill(unix.SIGKILL))
		}
		if left := awaitKilled(ctx, genuine, refused); len(left) > 0 {
			return fmt.Errorf("cannot end daemon of %s: %w", d.PipeDir, errors.Join(refused, fmt.Errorf("%v does not go", left)))
		}
		bounded, cancel := context.WithTimeout(ctx, wait.AtMostThird(ctx, lookalikeTimeout))
		left := await(bounded, impostors)
		cancel()
		if len(left) > 0 {
			break
		}
	}
	return fmt.Errorf("cannot end all of %s: %w", d.PipeDir, site.ErrImpostors)
}

// sorted separates the daemon, its children and the members of its session, which no other process can join, from
// processes that only have the name. If the daemon's pid is unknown, all are taken for genuine.
func sorted(processes []proc.Process, d lease.Daemon) (genuine, impostors []proc.Process) {
	for _, p := range processes {
		if d.Proc.PID == 0 || p == d.Proc || startedBy(p.PID, d) || !proc.Exists(p.PID) {
			genuine = append(genuine, p)
		} else {
			impostors = append(impostors, p)
		}
	}
	return genuine, impostors
}

// awaitKilled waits until processes have ended. It waits only briefly if one could not be killed: that one may still
// end with another, as a server does with its daemon.
func awaitKilled(ctx context.Context, procs []proc.Process, refused error) (left []proc.Process) {
	if refused == nil {
		return await(ctx, procs)
	}
	bounded, cancel := context.WithTimeout(ctx, leftTimeout)
	defer cancel()
	return await(bounded, procs)
}

// await waits until processes have ended. It returns those that are left when ctx ends.
func await(ctx context.Context, procs []proc.Process) (left []proc.Process) {
	for {
		left = proc.Left(procs)
		if len(left) == 0 || !wait.Sleep(ctx, time.Millisecond) {
			return left
		}
	}
}

// livingProcesses returns the daemon's processes and the recorded one, whatever its environment is now.
func (c ControlProgram) livingProcesses(job lease.Job, d lease.Daemon) ([]proc.Process, error) {
	processes, err := c.Processes(job, d)
	if !slices.Contains(processes, d.Proc) && d.Proc.Running() {
		processes = append(processes, d.Proc)
	}
	return processes, err
}
