package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// comm is the name that the kernel has for daemon and server alike, cut at 15 bytes.
const comm = "nvidia-cuda-mps"

// passes bounds how often the processes are listed for one answer.
const passes = 10

// Family finds the processes of a daemon, itself and its servers: they bear the name, are the job user's and have the
// daemon's pipe folder in their environment. A user can make such a process too, and then it is ended with the rest:
// it is the user's own and says of itself that it belongs to this job.
//
// A list of processes is old when it is read: one that has gone meanwhile may have left a child that is not on it, which
// is what the program that starts a daemon does. So they are listed again until nobody has gone unseen.
func (c Control) Family(job lease.Job, d lease.Daemon) ([]site.Proc, error) {
	var family []site.Proc
	seen := map[int]bool{}
	look := newLook(job.UID, d.PipeDir)
	for range passes {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return nil, fmt.Errorf("cannot list processes: %w", err)
		}
		var unseen []int
		for _, entry := range entries {
			if pid, err := strconv.Atoi(entry.Name()); err == nil && !seen[pid] {
				unseen = append(unseen, pid)
			}
		}
		missed := false
		for i, sight := range look.at(unseen) {
			seen[unseen[i]] = sight.kin != becoming
			missed = missed || sight.kin == gone || sight.kin == becoming
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

// kin is what a process is to a daemon.
type kin int

const (
	stranger kin = iota
	member
	gone     // before it could be looked at
	becoming // another program, and has no environment for a moment
)

// sight is what a process is found to be.
type sight struct {
	proc site.Proc
	kin  kin
}

// look is for daemons and servers of a pipe folder and a user. Their environment is read from their memory, and whose
// memory it is can hold up the reader for ever: by a page that a file system of that user's has to bring. So all are read
// at the same time, and all that hold up their readers are waited for once.
type look struct {
	uid     uint32
	pipeDir string
	until   time.Time
}

const (
	lookPatience  = time.Second
	leastPatience = 20 * time.Millisecond // for who is found after that
)

func newLook(uid uint32, pipeDir string) look {
	return look{uid, pipeDir, time.Now().Add(lookPatience)}
}

// errStuck is a process whose memory does not come. It is taken for a stranger: no daemon of this house's does that.
var errStuck = errors.New("it holds up its reader")

// at tells what processes are.
func (l look) at(pids []int) []sight {
	all := make([]sight, len(pids))
	var looks sync.WaitGroup
	for i, pid := range pids {
		if kin := l.glance(pid); kin != member {
			all[i].kin = kin
			continue
		}
		looks.Go(func() { all[i] = l.serves(pid) })
	}
	looks.Wait()
	return all
}

// glance tells which processes may be members by what costs little to know: the user and the name. Root is the owner of a
// process that has changed its uid and not yet run its program, as our own child between fork and exec.
func (l look) glance(pid int) kin {
	folder := "/proc/" + strconv.Itoa(pid)
	var st unix.Stat_t
	if unix.Stat(folder, &st) != nil {
		return gone
	}
	if st.Uid != l.uid && st.Uid != 0 {
		return stranger
	}
	name, err := os.ReadFile(folder + "/comm")
	if err != nil {
		return gone
	}
	if !strings.HasPrefix(string(name), comm) {
		return stranger
	}
	return member
}

// serves tells whether pid is a living daemon or server of the pipe folder, run by the user and nobody else: a program
// with the set-user-id bit that the user started under such a name is not the user's. The start time is read before the
// rest and again after it, so that all of it is about one process.
func (l look) serves(pid int) sight {
	before, err := site.ReadStat(pid)
	if err != nil {
		return sight{kin: gone}
	}
	environment, err := l.environment(pid)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, errStuck):
		return sight{kin: stranger}
	case err != nil || !before.Proc.Alive():
		return sight{kin: gone}
	case len(environment) == 0:
		return sight{kin: becoming}
	case !has(environment, "CUDA_MPS_PIPE_DIRECTORY="+l.pipeDir), !runBy(pid, l.uid):
		return sight{kin: stranger}
	}
	return sight{before.Proc, member}
}

// environment reads the environment of a process. A read that hangs is left behind, and ends with this process.
func (l look) environment(pid int) ([]byte, error) {
	type answer struct {
		content []byte
		err     error
	}
	answered := make(chan answer, 1)
	go func() {
		content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		answered <- answer{content, err}
	}()
	timer := time.NewTimer(max(time.Until(l.until), leastPatience))
	defer timer.Stop()
	select {
	case a := <-answered:
		return a.content, a.err
	case <-timer.C:
		return nil, errStuck
	}
}

// runBy reports whether all four uids of a process (real, effective, saved, of the file system) are the one.
func runBy(pid int, uid uint32) bool {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(status, []byte("\nUid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	uids := strings.Fields(string(line))
	own := strconv.FormatUint(uint64(uid), 10)
	return len(uids) == 4 && !slices.ContainsFunc(uids, func(u string) bool { return u != own })
}

func has(environment []byte, variable string) bool {
	for entry := range bytes.SplitSeq(environment, []byte{0}) {
		if string(entry) == variable {
			return true
		}
	}
	return false
}

// mostRounds bounds End. Nothing but a daemon starts a server, and after the first round no daemon is left; a second finds
// what was started during the first.
const mostRounds = 10

const (
	// mimicPatience is for a killed process to go that is not known to be of the daemon's making, a third of what is left
	// at most: its user may keep it from going, and a server that has lost its daemon may have much to free.
	mimicPatience = 10 * time.Second
	// goesAlong is for a process to go that could not be killed, with one that was.
	goesAlong = time.Second
)

// End kills what is left of a daemon and waits until it is gone; an error names what does not go. Servers go with their
// daemon (measured), and are killed all the same. The error is site.ErrMimics where the daemon and its servers are gone,
// and processes that only look like them go on to appear, or do not go.
func (c Control) End(ctx context.Context, job lease.Job, d lease.Daemon) error {
	until := time.Now().Add(third(ctx, mimicPatience))
	for round := range mostRounds {
		if round > 1 && time.Now().After(until) { // two rounds find all that is the daemon's
			break
		}
		family, err := c.living(job, d)
		if err != nil || len(family) == 0 {
			return err
		}
		genuine, mimics := sorted(family, d)
		refused := kill(family)
		if left := awaitKilled(ctx, genuine, refused); len(left) > 0 {
			return fmt.Errorf("cannot end daemon of %s: %w", d.PipeDir, errors.Join(refused, fmt.Errorf("%v does not go", left)))
		}
		patient, cancel := context.WithTimeout(ctx, third(ctx, mimicPatience))
		left := await(patient, mimics)
		cancel()
		if len(left) > 0 {
			break
		}
	}
	return fmt.Errorf("cannot end all of %s: %w", d.PipeDir, site.ErrMimics)
}

// sorted tells the daemon and what it has started from what only bears the name: its children, and what is in its
// session, which nobody else can join. Of a daemon that is not known by its pid everything is taken for genuine.
func sorted(family []site.Proc, d lease.Daemon) (genuine, mimics []site.Proc) {
	for _, proc := range family {
		stat, err := site.ReadStat(proc.PID)
		own := err != nil || d.Proc.PID == 0 || proc == d.Proc || stat.Parent == d.Proc.PID || stat.Session == d.Proc.PID
		if own {
			genuine = append(genuine, proc)
		} else {
			mimics = append(mimics, proc)
		}
	}
	return genuine, mimics
}

func kill(family []site.Proc) error {
	var failed error
	for _, proc := range family {
		failed = errors.Join(failed, proc.Kill(unix.SIGKILL))
	}
	return failed
}

// awaitKilled waits until processes are gone, and not for long where one could not be killed: it may still go with another,
// as a server does with its daemon.
func awaitKilled(ctx context.Context, procs []site.Proc, refused error) (left []site.Proc) {
	if refused == nil {
		return await(ctx, procs)
	}
	patient, cancel := context.WithTimeout(ctx, goesAlong)
	defer cancel()
	return await(patient, procs)
}

// await waits until processes are gone, and returns those that are not when ctx ends.
func await(ctx context.Context, procs []site.Proc) (left []site.Proc) {
	for {
		left = slices.DeleteFunc(slices.Clone(procs), func(p site.Proc) bool { return !p.Alive() })
		if len(left) == 0 || !site.Pause(ctx, time.Millisecond) {
			return left
		}
	}
}

// living is the family and the recorded process, whatever its environment says by now.
func (c Control) living(job lease.Job, d lease.Daemon) ([]site.Proc, error) {
	family, err := c.Family(job, d)
	if err != nil {
		return nil, err
	}
	if !d.Proc.Alive() {
		return family, nil
	}
	for _, proc := range family {
		if proc == d.Proc {
			return family, nil
		}
	}
	return append(family, d.Proc), nil
}
