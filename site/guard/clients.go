// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/take"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm/witness"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// client is a process of the job's user that has the driver's memory device open.
type client struct {
	proc    proc.Process
	forkOf  int // the parent at the first scan
	parent  int // at the first scan; 0 when the guard knows that the parent is not a control daemon
	pidfd   int // readable when the process has ended
	thread  int // the thread by which its files are read and duplicated
	files   []*file
	gpus    uint64 // bit n: the client has the job's GPU n open; 0 if no GPU is known
	others  bool   // the client has GPUs of another job open, which may be the same user's
	seen    bool   // the client is counted in GuardState.ClientsSeen
	peak    int    // GuardState.ClientsPeak before the client was counted
	opened  time.Time
	died    time.Time
	unknown time.Time // since when the use of a dead client's GPUs is not known, zero if it is
	exit    exitStatus
	inOrder bool // it has ended with status 0, or has closed its files itself
	// unsettled is set while its status is 0 or unknown, and a message about one of its threads may come.
	unsettled bool
	group     string // the memory control group, "" for none
	resident  uint64 // bytes of host memory at the last scan, or more if it is known to have grown since
	beside    uint64 // bytes that were charged to the group beside it, at its first scan or at the last full one
	measured  bool   // its end was compared with beside
	// hostShort is the result of the last check: its control group or the node has little memory left.
	hostShort  bool
	needed     bool   // its room has been needed, so newcomers may be on their way
	keepsOut   bool   // newcomers must wait: its room is needed, or not known to be plentiful
	places     uint64 // bit n: this dead client takes a place of the job's GPU n
	announced  bool   // the job was told of its end
	lives      bool   // it has closed these files and lives on
	namespaced bool   // the driver may know it by another pid
	wasRoomy   bool   // the GPU had plenty of room when the files were closed
	verify     time.Time
	missed     bool   // the last check found no pipes to a server
	neighbours int    // the neighbours at the client's death
	harmed     int    // those of them that have ended within usage.HarmTime after it
	told       bool   // the recorder knows the client
	toldGPUs   uint64 // the GPUs that the recorder knows
}

// file is an open file of one or more clients, because a fork shares its parent's files.
type file struct {
	fd     int // the guard's duplicate
	kind   kind
	number int // the client's descriptor
	users  int
	owner  proc.Process // the oldest process that had the file; the others are forks
}

// inherits reports whether all files of a client belong to the process that forked the client.
func (c *client) inherits() bool {
	return !slices.ContainsFunc(c.files, func(f *file) bool { return f.owner == c.proc })
}

const (
	// maxFiles limits the duplicates. A client has three, so 60 clients on each of 16 GPUs have 2,880.
	maxFiles = 3072
	// maxDescriptors limits the descriptors that are read of one process, because the files of cuInit are among the
	// first. A scan ends after maxScanned descriptors in all, and the next scan continues there.
	maxDescriptors = 4096
	maxScanned     = 64 << 10
)

// find scans all processes of the job's user. It also scans known clients, because PyTorch opens the memory
// device a second time.
func (g *Guard) find(full bool) {
	g.scans.cut = false
	candidates, err := g.candidates(full)
	if err != nil {
		g.logOnce("cannot see the processes of this node", err)
		return
	}
	left := maxScanned
	for i, pid := range candidates {
		if i > 0 && g.events.anyDied() { // a successor may need the dead client's place
			g.scans.resume, g.scans.cut = pid, true
			return
		}
		if left <= 0 {
			g.scans.resume = pid
			g.logOnce("cannot look at all processes of the job's user at once", fmt.Errorf("they have more than %d files open", maxScanned))
			return
		}
		opened, err := g.kernel.openedBy(pid, min(left, maxDescriptors))
		left -= opened.scanned + 1
		g.noteUnguarded(pid, err, false)
		if err == nil && len(opened.memory) > 0 {
			g.take(pid, opened, full)
		}
	}
	g.scans.resume = 0
}

const kthreadd = 2 // the parent of the kernel's threads: some 20 for each core, without memory, and never a client

// candidates returns the processes that may be clients. It begins with those that the previous scan did not reach.
func (g *Guard) candidates(full bool) (pids []int, err error) {
	ofRoot := map[int]bool{}
	err = proc.EachPID(func(pid int) bool {
		switch uid, ok := proc.Owner(pid); {
		case !ok || pid == g.kernel.self || uid != g.UID && uid != 0:
			return true
		case uid != g.UID: // of root, or not dumpable: the latter is found when it is new, and in a full scan
			thread, known := g.ofRoot[pid]
			if ofRoot[pid] = thread; thread || known && !full {
				return true
			}
			if status, err := proc.ReadStatus(pid); err != nil || status.UIDs[1] != g.UID {
				ofRoot[pid] = err == nil && status.Parent == kthreadd && proc.Resident(kthreadd) == 0
				return true
			}
			delete(ofRoot, pid)
		}
		pids = append(pids, pid)
		return true
	})
	g.ofRoot = ofRoot
	start, _ := slices.BinarySearch(pids, g.scans.resume)
	return slices.Concat(pids[start:], pids[:start]), err
}

// take duplicates the files of a process that has the memory device open. The control device's files come first.
func (g *Guard) take(pid int, opened opened, full bool) {
	c := g.living[pid]
	isNew := c == nil
	if isNew {
		var err error
		if c, err = g.admit(pid); err != nil {
			g.noteUnguarded(pid, err, true)
			return
		}
	} else if pollable(c.pidfd) { // the process has ended and the pid may be reused; its event will come
		return
	}
	c.thread = opened.thread
	g.addClosed(c, time.Now())
	if opened.gpus != 0 || opened.others { // cuInit opens all GPUs of the node, then closes the unused ones (measured)
		c.gpus, c.others = opened.gpus, opened.others
	}
	if c.ofOthers() && time.Since(c.opened) > settling || g.isServer(c) {
		g.dismiss(c)
		return
	}
	g.noteMemory(c, isNew || full)
	for _, number := range opened.control {
		g.takeFile(c, number, controlFile)
	}
	for _, number := range opened.memory {
		g.takeFile(c, number, memoryFile)
	}
	switch {
	case g.living[pid] != nil:
	case len(c.files) == 0:
		g.events.unfollow(c.pidfd)
		return
	default:
		g.living[pid] = c
		g.changed = true
	}
	if !c.seen && !c.inherits() {
		g.count(c)
	}
	g.tellLiving(c)
}

// settling is longer than cuInit keeps GPUs open that the process does not use: 40 ms (measured).
const settling = time.Second

// ofOthers reports whether a process has GPUs open, but none of this job's.
func (c *client) ofOthers() bool { return c.gpus == 0 && c.others }

// dismiss closes the files of a process of another job and removes it from the counts. That job's own guard holds its
// files.
func (g *Guard) dismiss(c *client) {
	g.dismissed[c.proc] = true
	g.forget(c)
	delete(g.living, c.proc.PID)
	delete(g.names, c.proc)
	g.events.unfollow(c.pidfd)
	g.close(c)
}

// count counts a client.
func (g *Guard) count(c *client) {
	c.seen, c.peak = true, g.state.ClientsPeak
	g.state.ClientsSeen++
	g.state.ClientsPeak = max(g.state.ClientsPeak, g.neighbours())
}

// forget removes a process from the counts of clients.
func (g *Guard) forget(c *client) {
	if c.seen {
		c.seen = false
		g.state.ClientsSeen--
		g.lowerPeak(c)
		g.changed = true
	}
	if c.told {
		c.told = false
		g.record(usage.Event{Proc: c.proc, NoClient: true})
	}
}

// lowerPeak removes a process that is no client from the maximum. If the maximum has grown since the process was
// counted, it was one too large, also for the clients that came later.
func (g *Guard) lowerPeak(c *client) {
	if g.state.ClientsPeak <= c.peak {
		return
	}
	g.state.ClientsPeak--
	for _, other := range g.living {
		if other.peak > c.peak {
			other.peak--
		}
	}
}

// errNotOurs means that a process is not a client of this job.
var errNotOurs = errors.New("not a client of this job")

// admit opens a pidfd of a process, and then checks that the process belongs to this job. It must run as the job's
// user, be in no other job's control group, and be neither a server nor a guard.
func (g *Guard) admit(pid int) (*client, error) {
	pidfd, err := g.kernel.pidfd(pid)
	if err != nil {
		return nil, err
	}
	c, err := g.newClient(pid, pidfd)
	if err == nil && pollable(pidfd) { // what was read may belong to another process with the same pid
		err = errNotOurs
	}
	if err == nil {
		if err = g.events.follow(pidfd, pid); err != nil {
			err = fmt.Errorf("cannot wait for its end: %w", errors.Unwrap(err)) // the same for all processes
		}
	}
	if err != nil {
		unix.Close(pidfd)
		return nil, err
	}
	g.name(c.proc)
	return c, nil
}

const (
	// maxUnguarded limits the processes that are remembered because they could not be admitted.
	maxUnguarded = 4096
	// maxCauses limits the causes that are told apart. There is one more for all others.
	maxCauses = 4
)

// noteUnguarded counts a process that may be a client, or is for certain, and cannot be watched, once, and logs each
// cause once. It ignores processes that have ended, that are not the job's, and that do not answer now.
func (g *Guard) noteUnguarded(pid int, err error, certain bool) {
	silent := errors.Is(err, proc.ErrSilent) && !errors.Is(err, errCrowd)
	ended := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	known := g.living[pid] != nil || g.unguarded[pid] || len(g.unguarded) >= maxUnguarded
	if err == nil || silent || ended || known || errors.Is(err, errNotOurs) {
		return
	}
	g.unguarded[pid], g.changed = true, true
	g.warnUnguarded(pid, err, certain)
	cause := words.OneLine(err)
	sameCause := func(u lease.Unguarded) bool { return u.Cause == cause }
	if !slices.ContainsFunc(g.state.Unguarded, sameCause) && len(g.state.Unguarded) >= maxCauses {
		cause = "other causes"
	}
	i := slices.IndexFunc(g.state.Unguarded, sameCause)
	if i < 0 {
		g.logOnce("cannot watch a process of the job: if it is a client, its end harms its neighbours: "+cause, nil)
		i = len(g.state.Unguarded)
		g.state.Unguarded = append(g.state.Unguarded, lease.Unguarded{Cause: cause})
	}
	g.state.Unguarded[i].Processes++
}

// newClient checks a process of the job's user, and returns it as a client without files.
func (g *Guard) newClient(pid, pidfd int) (*client, error) {
	stat, err1 := g.kernel.stat(pid)
	status, err2 := proc.ReadStatus(pid)
	groups, _ := proc.GroupsOf(pid)
	jobs := witness.JobsOf(groups)
	err := errors.Join(err1, err2)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return nil, fmt.Errorf("cannot read its state: %w", unix.EMFILE)
	}
	if err != nil || g.dismissed[stat.Process] || !g.ours(status, jobs) {
		return nil, errNotOurs
	}
	isDaemon, _ := g.isDaemon(stat.Parent) // isServer asks again for a parent that does not answer
	isGuard, err := g.kernel.sameProgram(g.kernel.self, pid)
	if err != nil || isDaemon || isGuard || g.isHelper(pid) || g.isHelper(stat.Parent) {
		return nil, errNotOurs
	}
	if len(jobs) == 0 {
		g.checkJob(stat.Process)
	}
	now := time.Now()
	c := &client{
		proc: stat.Process, forkOf: stat.Parent, parent: stat.Parent, pidfd: pidfd, thread: pid,
		opened: now, verify: now.Add(verifyAfter), group: g.kernel.memoryGroup(groups), namespaced: status.Nested,
	}
	return c, nil
}

// ours reports whether a process runs as the job's user and is in no other job's control group.
func (g *Guard) ours(status proc.Status, jobs []string) bool {
	number := strconv.FormatUint(uint64(g.Job), 10)
	another := func(job string) bool { return job != number && job != g.SLUID && !g.Record.Member(job) }
	return status.UIDs[1] == g.UID && !slices.ContainsFunc(jobs, another)
}

// isHelper reports whether a process is one of the guard's own programs, which lead sessions of their own. Neither it nor
// what it starts is a client: a gauge of the user's reads the GPUs itself, or with nvidia-smi.
func (g *Guard) isHelper(pid int) bool {
	session, err1 := unix.Getsid(pid)
	stat, err2 := g.kernel.stat(pid)
	return err1 == nil && err2 == nil && session == pid && stat.Parent == g.kernel.self
}

// isDaemon reports whether a process is a control daemon of any job. Its children are servers, not clients. The error
// is proc.ErrSilent if that is not known yet.
func (g *Guard) isDaemon(pid int) (daemon bool, err error) {
	for _, d := range g.Daemons() {
		if d.PID == pid {
			return true, nil
		}
		same, failed := g.kernel.sameProgram(d.PID, pid)
		if same {
			return true, nil
		}
		if errors.Is(failed, proc.ErrSilent) {
			err = failed
		}
	}
	return false, err
}

// isServer reports whether an admitted process is a server. The prolog starts the daemons at the same time as the
// guard. So isServer checks again until all daemons have started, because the guard then knows which program a daemon
// runs. One that has a pid may not run its program yet, so verifyOne has it checked once more.
func (g *Guard) isServer(c *client) bool {
	if c.parent == 0 {
		return false
	}
	daemon, err := g.isDaemon(c.parent)
	if !daemon && err == nil && !slices.ContainsFunc(g.Daemons(), func(d proc.Process) bool { return d.PID == 0 }) {
		c.parent = 0
	}
	return daemon
}

// pollable reports whether a pidfd's process has ended.
func pollable(pidfd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// takeFile holds one file of a client, unless the guard holds it already.
func (g *Guard) takeFile(c *client, number int, k kind) {
	if g.dismissed[c.proc] || slices.ContainsFunc(c.files, func(f *file) bool { return f.number == number && f.kind == k }) {
		return
	}
	if f, other := g.sharedFile(c, number, k); f != nil {
		f.users++
		c.files = append(c.files, f)
		g.setOwner(f, c, other)
		return
	}
	if g.files >= maxFiles && !g.makeRoom() {
		g.state.Unheld++
		g.logOnce("cannot hold the files of all clients", fmt.Errorf("%d files are held already", maxFiles))
		return
	}
	if g.kernel.asks.mayAsk(c.proc.PID) != nil {
		return // the next scan comes when the process answers
	}
	fd, err := g.duplicate(c, number, k)
	switch {
	case errors.Is(err, proc.ErrSilent):
		return
	case errors.Is(err, take.ErrChanged):
		g.logOnce("a process changes its files while they are looked at", err)
		return
	case errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESRCH): // the file was closed, or the process has ended
		return
	case errors.Is(err, errThread) && g.living[c.proc.PID] == nil:
		g.dismissed[c.proc] = true
		g.noteUnguarded(c.proc.PID, err, true)
		return
	case err != nil:
		if errors.Is(err, unix.EPERM) || errors.Is(err, errThread) { // the kernel's answer stays, and it logs each EPERM
			g.dismissed[c.proc] = true
		}
		g.state.Unheld++
		g.warnUnguarded(c.proc.PID, err, true)
		g.logOnce("cannot hold files of clients: a client that ends in mid-kernel harms its neighbours", err)
		return
	}
	if k == memoryFile {
		fd = aboveControl(c, fd)
	}
	c.files = append(c.files, &file{fd, k, number, 1, c.proc})
	g.files++
	g.changed = true
}

// duplicate duplicates one file of a client.
func (g *Guard) duplicate(c *client, number int, k kind) (fd int, err error) {
	pidfd, err := g.kernel.filesOf(c)
	if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	return g.takers.Duplicate(c.proc.PID, pidfd, number, g.kernel.identity(k))
}

// setOwner records the older of two clients as a file's owner, because a fork may be scanned before its parent. Both
// may have started in the same clock tick.
func (g *Guard) setOwner(f *file, c, other *client) {
	if c.proc.Start > f.owner.Start || c.proc.Start == f.owner.Start && c.forkOf == f.owner.PID {
		return
	}
	f.owner = c.proc
	if other.seen && other.inherits() {
		g.forget(other)
	}
}

// sharedFile returns a file that the client shares with another client because of a fork. The file has the same
// number in both processes.
func (g *Guard) sharedFile(c *client, number int, k kind) (*file, *client) {
	type candidate struct {
		file  *file
		owner *client
	}
	var all []candidate
	for _, other := range slices.AppendSeq(slices.Clone(g.dead), maps.Values(g.living)) {
		for _, f := range other.files {
			if f.number == number && f.kind == k && other != c {
				all = append(all, candidate{f, other})
			}
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	thread := c.thread
	found, err := ask(g.kernel.asks, c.proc.PID, func(step func()) (candidate, error) {
		for _, other := range all {
			step()
			if same, err := g.kernel.compare(other.file.fd, thread, number); same && err == nil {
				return other, nil
			}
		}
		return candidate{}, nil
	})
	if err != nil {
		return nil, nil
	}
	return found.file, found.owner
}

// aboveControl moves a duplicate of a memory file above those of the client's control files. The kernel closes the
// files of a killed process from the highest number down, and the memory files must be closed first (measured
// on H200s).
func aboveControl(c *client, fd int) int {
	lowest := 0
	for _, f := range c.files {
		if f.kind == controlFile {
			lowest = max(lowest, f.fd+1)
		}
	}
	if fd >= lowest {
		return fd
	}
	higher, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, lowest)
	if err != nil {
		return fd // the wrong order does harm once in 150 times, a missing duplicate always
	}
	unix.Close(fd)
	return higher
}

// clientDied records the death of a client. Its files stay open.
func (g *Guard) clientDied(pid int, now time.Time) {
	c := g.living[pid]
	if c == nil || !pollable(c.pidfd) {
		return
	}
	g.budget.busy = true
	if c.ofOthers() {
		g.dismiss(c)
		return
	}
	c.exit = g.exits.of(g.kernel, c.pidfd, pid)
	final := g.exits.whole || c.exit.known && !c.exit.inOrder()
	c.inOrder, c.unsettled = final && c.exit.inOrder(), !final
	g.events.unfollow(c.pidfd)
	delete(g.living, pid)
	g.noteEnd(c, now)
	g.noteHarm(c, now)
	g.addDead(c, now)
}

// learnEnds takes messages about the clients that died a moment ago.
func (g *Guard) learnEnds(now time.Time) {
	unsettled := func(c *client) bool { return c.unsettled }
	if !slices.ContainsFunc(g.dead, unsettled) {
		return
	}
	g.exits.drain()
	for _, c := range g.dead {
		if !c.unsettled {
			continue
		}
		c.exit = g.exits.seen[c.proc.PID]
		c.unsettled = now.Sub(c.died) < settleTime && (!c.exit.known || c.exit.inOrder())
		c.inOrder = !c.unsettled && c.exit.inOrder()
	}
}

// addDead adds a client to the dead.
func (g *Guard) addDead(c *client, now time.Time) {
	c.died, c.unknown = now, now
	c.neighbours = g.neighboursOf(c)
	g.tellDead(c, "", 0)
	g.dead = append(g.dead, c)
	g.nextCheck, g.changed = now, true
}

// addClosed treats the files that a living client has closed like those of a dead client. A client that execs another
// program leaves work and GPU memory behind, as a dead client does.
func (g *Guard) addClosed(c *client, now time.Time) {
	pid, thread, files := c.proc.PID, c.thread, slices.Clone(c.files)
	closed, err := ask(g.kernel.asks, pid, func(step func()) (closed []*file, _ error) {
		for _, f := range files {
			step()
			if same, err := g.kernel.compare(f.fd, thread, f.number); err == nil && !same || errors.Is(err, unix.EBADF) {
				closed = append(closed, f)
			}
		}
		return closed, nil
	})
	if err != nil || len(closed) == 0 {
		return
	}
	// A process that is killed has closed its files some time before its end is reported. They are the files of a dead
	// client then: its work may be in flight. The descriptors cannot be read either if the thread has ended.
	threadStat := func(func()) (proc.Stat, error) { return proc.ReadThreadStat(pid, thread) }
	if stat, err := ask(g.kernel.asks, pid, threadStat); err != nil || stat.State == 'Z' || stat.Exiting {
		return
	}
	c.files = slices.DeleteFunc(c.files, func(f *file) bool { return slices.Contains(closed, f) })
	dead := &client{proc: c.proc, files: closed, gpus: c.gpus, opened: c.opened, inOrder: true, lives: true}
	dead.group, dead.resident, dead.beside = c.group, c.resident, c.beside
	g.addDead(dead, now)
}

// findClosed calls addClosed for all living clients. A process that has closed all files is no longer a client.
func (g *Guard) findClosed(now time.Time) {
	for pid, c := range g.living {
		if g.addClosed(c, now); len(c.files) == 0 {
			c.died = now
			g.noteHarm(c, now)
			g.tellDead(c, usage.Ended, 0)
			g.events.unfollow(c.pidfd)
			delete(g.living, pid)
			delete(g.names, c.proc)
		}
	}
}

// neighbours counts the living clients, without those that are only forks.
func (g *Guard) neighbours() (count int) {
	for _, c := range g.living {
		if !c.inherits() {
			count++
		}
	}
	return count
}

// sameProgram reports whether two processes run the same file. A guard of another job holds files like a client, and a
// server of another job has its own daemon as its parent. Neither is a client. A process that has ended runs no file.
func (k *kernel) sameProgram(a, b int) (bool, error) {
	first, err1 := k.program(a)
	second, err2 := k.program(b)
	if errors.Is(err1, proc.ErrSilent) || errors.Is(err2, proc.ErrSilent) {
		return false, proc.ErrSilent
	}
	return err1 == nil && err2 == nil && first == second, nil
}

// program identifies the file that a process runs.
func (k *kernel) program(pid int) (take.Identity, error) {
	return ask(k.asks, pid, func(func()) (take.Identity, error) {
		var st unix.Statx_t
		err := take.Statx(unix.AT_FDCWD, proc.Folder(pid)+"/exe", 0, &st)
		return take.IdentityOf(&st), err
	})
}
