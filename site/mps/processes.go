// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// pipeVariable is where a daemon, its servers and its clients find each other.
const pipeVariable = "CUDA_MPS_PIPE_DIRECTORY"

// comm is the name that the kernel has for daemon and server alike, cut at 15 bytes.
const comm = "nvidia-cuda-mps"

// maxPasses bounds how often the processes are listed for one answer.
const maxPasses = 10

// Processes finds the processes of a daemon, itself and its servers: they bear the name, are the job user's and have the
// daemon's pipe folder in their environment. A user can make such a process too, and then it is ended with the rest:
// it is the user's own and says of itself that it belongs to this job.
//
// A list of processes is old when it is read: one that has gone meanwhile may have left a child that is not on it, which
// is what the program that starts a daemon does. So they are listed again until nobody has gone unseen.
func (c ControlProgram) Processes(job lease.Job, d lease.Daemon) ([]site.Process, error) {
	var family []site.Process
	seen := map[int]bool{}
	look := newSearch(job.UID, d)
	for range maxPasses {
		pids, err := proc.PIDs()
		if err != nil {
			return nil, err
		}
		unseen := slices.DeleteFunc(pids, func(pid int) bool { return seen[pid] })
		missed := false
		for i, sight := range look.at(unseen) {
			seen[unseen[i]] = sight.kin != undecided
			missed = missed || sight.kin == gone || sight.kin == undecided
			if sight.kin == member {
				family = append(family, sight.proc)
			}
		}
		if !missed {
			break
		}
	}
	return family, nil
}

// relation is what a process is to a daemon.
type relation int

const (
	unrelated relation = iota
	member
	gone      // before it could be looked at
	undecided // another program, and has no environment for a moment
)

// candidate is what a process is found to be.
type candidate struct {
	proc site.Process
	kin  relation
}

// search is for daemons and servers of a pipe folder and a user. Their environment is read from their memory, which can
// be slow to come: all have a second together.
type search struct {
	uid    uint32
	daemon lease.Daemon
	until  time.Time
}

const (
	lookTime    = time.Second
	minLookTime = 20 * time.Millisecond // for who is found after that
)

func newSearch(uid uint32, d lease.Daemon) search { return search{uid, d, time.Now().Add(lookTime)} }

// at tells what processes are: living daemons and servers of the pipe folder, run by the user and by no one else. A program
// with the set-user-id bit that the user started under such a name is not the user's. The start time is read before the
// rest and again after it, so that all of it is about one process. What does not give its memory is a stranger: no daemon
// of ours does that.
func (l search) at(pids []int) []candidate {
	all := make([]candidate, len(pids))
	var own, others []int // indices; the daemon's own are asked first, so that no other can use up their time
	states := make([]site.Stat, len(pids))
	for i, pid := range pids {
		if all[i].kin = l.quickCheck(pid); all[i].kin != member {
			continue
		}
		var err error
		states[i], err = site.ReadStat(pid)
		switch {
		case err != nil:
			all[i].kin = gone
		case startedBy(states[i], l.daemon):
			own = append(own, i)
		default:
			others = append(others, i)
		}
	}
	asked := append(own, others...)
	procs := make([]site.Process, len(asked))
	for k, i := range asked {
		procs[k] = states[i].Process
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(time.Until(l.until), minLookTime))
	defer cancel()
	for k, environment := range proc.Environments(ctx, procs, pipeVariable) {
		all[asked[k]] = candidate{procs[k], l.relationOf(procs[k], environment)}
	}
	return all
}

// quickCheck tells which processes may be members by what costs little to know: the user and the name. Root is the owner of a
// process that has changed its uid and not yet run its program, as our own child between fork and exec.
func (l search) quickCheck(pid int) relation {
	var st unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(pid), &st) != nil {
		return gone
	}
	if st.Uid != l.uid && st.Uid != 0 {
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

// hasName reports whether a process lives that may be a member by its name and its user.
func (l search) hasName(pid int) bool {
	stat, err := site.ReadStat(pid)
	return err == nil && stat.Running() && l.quickCheck(pid) == member
}

// startedBy reports whether a process is the daemon, or a child of it, or in its session, which no other can join.
func startedBy(s site.Stat, d lease.Daemon) bool {
	return d.Proc.PID != 0 && (s.Process == d.Proc || s.Parent == d.Proc.PID || s.Session == d.Proc.PID)
}

func (l search) relationOf(p site.Process, environment proc.Environment) relation {
	switch err := environment.Err; {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, proc.ErrLate), errors.Is(err, proc.ErrLong):
		return unrelated
	case err != nil || !p.Running():
		return gone
	case environment.Empty:
		return undecided
	case environment.Values[pipeVariable] != l.daemon.PipeDir, !runBy(p.PID, l.uid):
		return unrelated
	}
	return member
}

// runBy reports whether all four uids of a process are the one.
func runBy(pid int, uid uint32) bool {
	uids, err := proc.UIDs(pid)
	return err == nil && uids == [4]uint32{uid, uid, uid, uid}
}

// maxRounds bounds End. Nothing but a daemon starts a server, and after the first round no daemon is left; a second finds
// what was started during the first.
const maxRounds = 10

const (
	// lookalikeTimeout is for a killed process to go that is not known to be of the daemon's making, a third of what is left
	// at most: its user may keep it from going, and a server that has lost its daemon may have much to free.
	lookalikeTimeout = 10 * time.Second
	// goesAlong is for a process to go that could not be killed, with one that was.
	goesAlong = time.Second
)

// Kill kills what is left of a daemon and waits until it is gone; an error names what does not go. Servers go with their
// daemon (measured), and are killed all the same. The error is site.ErrImpostors where the daemon and its servers are gone,
// and processes that only look like them go on to appear, or do not go.
func (c ControlProgram) Kill(ctx context.Context, job lease.Job, d lease.Daemon) error {
	until := time.Now().Add(atMostThird(ctx, lookalikeTimeout))
	for round := range maxRounds {
		if round > 1 && time.Now().After(until) { // two rounds find all that is the daemon's
			break
		}
		family, err := c.livingProcesses(job, d)
		if err != nil || len(family) == 0 {
			return err
		}
		genuine, mimics := sorted(family, d)
		refused := kill(family)
		if left := awaitKilled(ctx, genuine, refused); len(left) > 0 {
			return fmt.Errorf("cannot end daemon of %s: %w", d.PipeDir, errors.Join(refused, fmt.Errorf("%v does not go", left)))
		}
		patient, cancel := context.WithTimeout(ctx, atMostThird(ctx, lookalikeTimeout))
		left := await(patient, mimics)
		cancel()
		if len(left) > 0 {
			break
		}
	}
	return fmt.Errorf("cannot end all of %s: %w", d.PipeDir, site.ErrImpostors)
}

// sorted tells the daemon and what it has started from what only bears the name: its children, and what is in its
// session, which nobody else can join. Of a daemon that is not known by its pid everything is taken for genuine.
func sorted(family []site.Process, d lease.Daemon) (genuine, mimics []site.Process) {
	for _, proc := range family {
		stat, err := site.ReadStat(proc.PID)
		if err != nil || d.Proc.PID == 0 || startedBy(stat, d) {
			genuine = append(genuine, proc)
		} else {
			mimics = append(mimics, proc)
		}
	}
	return genuine, mimics
}

func kill(family []site.Process) error {
	var failed error
	for _, proc := range family {
		failed = errors.Join(failed, proc.Kill(unix.SIGKILL))
	}
	return failed
}

// awaitKilled waits until processes are gone, and not for long where one could not be killed: it may still go with another,
// as a server does with its daemon.
func awaitKilled(ctx context.Context, procs []site.Process, refused error) (left []site.Process) {
	if refused == nil {
		return await(ctx, procs)
	}
	patient, cancel := context.WithTimeout(ctx, goesAlong)
	defer cancel()
	return await(patient, procs)
}

// await waits until processes are gone, and returns those that are not when ctx ends.
func await(ctx context.Context, procs []site.Process) (left []site.Process) {
	for {
		left = slices.DeleteFunc(slices.Clone(procs), func(p site.Process) bool { return !p.Running() })
		if len(left) == 0 || !site.Sleep(ctx, time.Millisecond) {
			return left
		}
	}
}

// livingProcesses is the family and the recorded process, whatever its environment says by now.
func (c ControlProgram) livingProcesses(job lease.Job, d lease.Daemon) ([]site.Process, error) {
	family, err := c.Processes(job, d)
	if err != nil {
		return nil, err
	}
	if !d.Proc.Running() {
		return family, nil
	}
	for _, proc := range family {
		if proc == d.Proc {
			return family, nil
		}
	}
	return append(family, d.Proc), nil
}
