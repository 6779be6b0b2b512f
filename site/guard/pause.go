// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// A dead client's work may be in flight as long as the driver's samples show work, and its neighbours' work keeps the
// samples above 0. So if the room that the dead client takes is needed, its neighbours are paused. Their queues run
// empty, the samples fall to 0, and then the files can be closed without harm.
//
// A process of its own stops the neighbours by ptrace (docs/decisions/037):
//
//	guard                     guard --pause 6s
//	  |--- "pid start uid" --->| PTRACE_SEIZE and PTRACE_INTERRUPT of each thread
//	  |<-- "paused" -----------| all threads have stopped
//	  |   (the GPU gets idle)
//	  |--- end of stdin ------>| exits: the kernel continues all threads
//
// When a tracer ends, the kernel detaches it and continues what it has stopped. So nothing stays stopped, whatever
// dies. A timer of the kernel kills the tracer when its time is over. The neighbours get no signal, their parents are
// not told, and a process that a user has stopped stays stopped.

const (
	// pauseAck is how long the pausing process waits until all threads have stopped. A thread that is in the kernel for
	// longer, as in vfork or in a file system that does not answer, stops before it runs code of its program again.
	pauseAck = 500 * time.Millisecond
	// pauseSlack is the time after the policy's limit at which the kernel kills the pausing process. The guard itself
	// ends a pause at the limit.
	pauseSlack = time.Second
	// pauseDone is the answer of the pausing process.
	pauseDone = "paused"
	// reapEvery is the time between two checks for processes that have ended during the pause.
	reapEvery = 50 * time.Millisecond
	minRest   = time.Second
	// maxDoubled limits the rest after pauses that fail beside others' programs: to 17 h if hold is 1 minute.
	maxDoubled = 10
	// maxThreads limits the threads of one process that are paused.
	maxThreads = 16384
)

// Pause stops processes until its stdin ends. Each line of stdin is "PID START UID": the process with this effective
// uid. A process that is another one by now, or runs as another user, is not stopped. It answers a line on stdout for each
// line. The kernel kills this process after limit, and continues the processes when this process ends, however it
// ends.
func Pause(limit time.Duration) error {
	runtime.LockOSThread() // only the thread that traces may ask for more
	if err := killAfter(limit + pauseSlack); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("cannot follow the guard's end: %w", err)
	}
	t := tracer{stopped: map[int]bool{}}
	lines := bufio.NewReader(os.Stdin)
	for {
		// The parent of a traced process that is killed learns of its end when this process has waited for it.
		for lines.Buffered() == 0 && readable(0, reapEvery) != nil {
			for t.wait() {
			}
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil // the end of the pause
		}
		answer := pauseDone
		var p paused
		if _, err := fmt.Sscan(line, &p.PID, &p.Start, &p.uid); err != nil {
			answer = fmt.Sprintf("cannot read %.40q: %v", line, err)
		} else if err := t.pause(p); err != nil {
			answer = words.OneLine(err)
		}
		fmt.Println(answer)
	}
}

// killAfter makes the kernel kill this process after a time, even if it hangs in a system call that can be killed.
func killAfter(limit time.Duration) error {
	event := struct {
		value  uint64
		signal int32
		notify int32
		_      [48]byte
	}{signal: int32(unix.SIGKILL)} // notify 0 is SIGEV_SIGNAL
	var timer int32
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&timer))); errno != 0 {
		return fmt.Errorf("cannot limit the pause: %w", errno)
	}
	when := struct{ interval, value unix.Timespec }{value: unix.NsecToTimespec(int64(limit))}
	if _, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(timer), 0, uintptr(unsafe.Pointer(&when)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("cannot limit the pause: %w", errno)
	}
	return nil
}

// tracer stops threads.
type tracer struct {
	stopped map[int]bool // by thread ID; false until the thread has stopped
}

// paused is a process that is to stop, with its user. A client may exec a set-user-id program and keep its files open.
// That program is root's, and must not stop.
type paused struct {
	proc.Process
	uid uint32
}

var errForeign = errors.New("it is another process or runs as another user now")

// check returns errForeign if the pid is another process's by now, or the process runs as another user. Any other
// error means that this cannot be told, or that the process has ended.
func (p paused) check() error {
	stat, err1 := proc.ReadStat(p.PID)
	status, err2 := proc.ReadStatus(p.PID)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if stat.Process != p.Process || status.UIDs[1] != p.uid {
		return errForeign
	}
	return nil
}

// gone reports whether an error means that a process or thread has ended.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// pause stops all threads of a process, and returns when they have stopped. After an error, the guard ends the pause,
// so that no process stays stopped of which it is not known whose it is.
func (t *tracer) pause(p paused) error {
	switch err := p.check(); {
	case gone(err) || errors.Is(err, errForeign):
		return nil
	case err != nil:
		return fmt.Errorf("cannot pause process %d: %w", p.PID, err)
	}
	end := time.Now().Add(pauseAck)
	if err := t.seizeAll(p.PID, end); err != nil {
		return err
	}
	for !t.allStopped() && time.Now().Before(end) {
		if !t.wait() {
			time.Sleep(time.Millisecond)
		}
	}
	// The process is traced now, so its pid is not used again before this process has waited for it.
	if err := p.check(); err != nil && !gone(err) {
		return fmt.Errorf("cannot pause process %d: %w", p.PID, err)
	}
	return nil
}

// seizeAll traces all threads of a process and asks them to stop. It lists them again until no thread is new, because a
// thread may start another one before it stops. A thread that execs takes the place of the first one, and cannot be
// traced at that moment: it is tried again until a time.
func (t *tracer) seizeAll(pid int, end time.Time) error {
	for {
		found, err := t.seizeNew(pid)
		switch {
		case errors.Is(err, errExecs) && time.Now().Before(end):
			time.Sleep(time.Millisecond)
		case err != nil || !found:
			return err
		case time.Now().After(end):
			return fmt.Errorf("cannot pause process %d: it starts threads without end", pid)
		}
	}
}

var errExecs = errors.New("a thread that nothing else traces cannot be traced, as in the middle of an exec")

func (t *tracer) seizeNew(pid int) (found bool, err error) {
	threads := 0
	listed := proc.EachThread(pid, func(thread int) bool {
		threads++
		if _, known := t.stopped[thread]; known {
			return threads < maxThreads
		}
		var new bool
		new, err = t.seizeOne(pid, thread)
		found = found || new
		return err == nil && threads < maxThreads
	})
	if !gone(listed) {
		err = errors.Join(err, listed)
	}
	if err != nil {
		return found, fmt.Errorf("cannot pause process %d: %w", pid, err)
	}
	return found, nil
}

// seizeOne seizes a thread. It reports whether the thread is new and traced.
func (t *tracer) seizeOne(pid, thread int) (found bool, err error) {
	err = t.seize(thread)
	if err == nil {
		return true, nil
	}
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	status, err2 := proc.ReadThread(pid, thread)
	switch {
	case err2 != nil, status.State == 'Z', status.State == 'X': // the first thread may have ended before the others
		return false, nil
	case status.Tracer == unix.Gettid(): // a traced thread has just started it
		t.stopped[thread] = false
		return true, nil
	}
	if status.Tracer == 0 && errors.Is(err, unix.EPERM) {
		return false, errExecs
	}
	return false, fmt.Errorf("%w: process %d traces it", err, status.Tracer)
}

func (t *tracer) seize(thread int) error {
	// A new thread of a traced thread is traced from its first instruction.
	const options = unix.PTRACE_O_TRACECLONE
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(thread), 0, options, 0, 0); errno != 0 {
		return errno
	}
	t.stopped[thread] = false
	if err := unix.PtraceInterrupt(thread); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// wait notes one thread that has stopped or ended.
func (t *tracer) wait() bool {
	var status unix.WaitStatus
	thread, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOHANG, nil)
	if err != nil || thread <= 0 {
		return false
	}
	t.stopped[thread] = true // one that has ended does nothing, too
	return true
}

func (t *tracer) allStopped() bool {
	for _, stopped := range t.stopped {
		if !stopped {
			return false
		}
	}
	return true
}

// pauses are the pauses of a guard: the present one and the end of the last one.
type pauses struct {
	now    *pause    // nil for none
	next   time.Time // a pause begins no earlier
	apart  time.Time // beside others' programs, it begins no earlier than this
	met    time.Time // when others' programs were last on a dead client's GPU
	failed time.Time // when the last pause ended that did not get the GPU idle, without programs of others
	never  bool
	began  time.Time     // the last pause
	before time.Duration // the processor time of children when it began
	cost   time.Duration // what the last pause has taken of the guard itself
	vain   bool          // a pause would help some dead client, but cannot: others work on its GPU
	others bool          // others have programs on a dead client's GPU
	beside uint          // pauses in a row that have failed beside others' programs
}

// left returns how long the present pause, or one that begins now, may last.
func (p *pauses) left(limit time.Duration, now time.Time) time.Duration {
	if p.now == nil {
		return limit
	}
	return limit - now.Sub(p.now.began)
}

// over reports whether a pause is of no more use for a client whose hold was over at a time.
func (p *pauses) over(hold time.Time) bool { return p.never || p.now == nil && p.failed.After(hold) }

// pause is one pause of neighbours.
type pause struct {
	own     time.Duration // the processor time of the guard itself when it began
	began   time.Time
	done    time.Time    // when the last dead client's files were closed, zero before that
	asked   map[int]bool // the pids of the neighbours that are to stop
	add     chan paused
	answers chan error
	end     chan struct{}
	others  bool // others had programs on a dead client's GPU during the pause
}

// maxPaused limits the neighbours of one pause. A GPU serves 60 clients, and a node has 16 GPUs.
const maxPaused = 1024

// pauseFor begins, continues or ends a pause. needing are the dead clients whose room is needed.
func (g *Guard) pauseFor(needing []*client, now time.Time) {
	p := g.pauses.now
	switch {
	case p == nil:
		if len(needing) > 0 && g.mayPause(now) {
			g.beginPause(needing, now)
		}
		return
	case len(p.answers) > 0:
		if err := <-p.answers; err != nil {
			g.logOnce("cannot pause the neighbours of a dead client", err)
			g.endPause(now, false)
			return
		}
	}
	p.others = p.others || g.pauses.others
	switch {
	case len(needing) > 0:
		p.done = time.Time{}
	case p.done.IsZero():
		p.done = now
	}
	switch {
	case len(needing) == 0 && g.pauses.vain:
		g.endPause(now, false)
		return
	case len(needing) == 0 && (len(g.closing) == 0 || now.Sub(p.done) >= freeWait): // the memory is free
		g.endPause(now, true)
		return
	case now.Sub(p.began) >= g.Pause:
		g.endPause(now, false)
		return
	}
	g.pauseMore(needing)
}

// mayPause reports whether a pause may begin. After one that has failed, the neighbours rest, and so does the guard as
// its budget demands for what that one has cost: a process that cannot be paused fails each of them.
func (g *Guard) mayPause(now time.Time) bool {
	p := &g.pauses
	cost := g.budget.children - p.before + p.cost
	rested := p.failed.Before(p.began) || now.Sub(p.began) >= cost*g.budget.ratio()
	begin := latest(p.next, earliest(p.apart, p.met.Add(g.Hold)))
	return !p.never && rested && !now.Before(begin) && g.budget.mayPause(now)
}

func (g *Guard) beginPause(needing []*client, now time.Time) {
	g.budget.measure()
	p := &pause{
		began: now, own: g.budget.total - g.budget.children, asked: map[int]bool{}, add: make(chan paused, maxPaused), answers: make(chan error, maxPaused+1),
		end: make(chan struct{}),
	}
	g.pauses.now, g.pauses.began, g.pauses.before = p, now, g.budget.children
	g.pauseMore(needing)
	go p.run(g.Pauser, g.Pause, g.events.nudge)
}

// pauseMore pauses the neighbours of dead clients, also those that have come during the pause.
func (g *Guard) pauseMore(needing []*client) {
	p, gpus := g.pauses.now, gpusOf(needing)
	for pid, other := range g.living {
		if len(needing) == 0 || p.asked[pid] || other.inherits() || len(p.asked) >= maxPaused {
			continue
		}
		if gpus == 0 || other.mayUse(gpus) {
			p.asked[pid] = true
			p.add <- paused{other.proc, g.UID}
		}
	}
}

// endPause continues the neighbours. After a pause in which the GPU did not get idle, the next one begins after a rest
// of the same length, so that the neighbours have at least half of the time. Beside programs of others, it begins after
// the time of hold, and then after twice as long each time, because nothing else ends them. When the others have been
// away for hold, that is over.
func (g *Guard) endPause(now time.Time, idle bool) {
	p := g.pauses.now
	if p == nil {
		return
	}
	close(p.end)
	g.budget.measure()
	g.pauses.cost = max(0, g.budget.total-g.budget.children-p.own)
	took := now.Sub(p.began)
	g.pauses.now = nil
	switch rest := max(took, minRest); {
	case idle:
		g.pauses.beside = 0
	case p.others:
		g.pauses.next, g.pauses.apart = now.Add(rest), now.Add(max(rest, g.Hold<<min(g.pauses.beside, maxDoubled)))
		g.pauses.beside++
	default:
		g.pauses.failed, g.pauses.next = now, now.Add(rest)
	}
	g.state.Pauses++
	g.state.PausedMillis += took.Milliseconds()
	g.changed = true
	g.record(usage.Event{})
	g.logClient(Line{
		Message: "paused the neighbours of a dead client, so that its files could be closed",
		Fields:  []any{"neighbours", len(p.asked), "paused_ms", took, "idle", idle},
	})
}

// run runs the process that pauses, until the pause ends.
func (p *pause) run(line []string, limit time.Duration, nudge func()) {
	defer nudge()
	pauser, err := proc.StartPiped(append(slices.Clone(line), limit.String())...)
	if err != nil {
		p.answers <- err
		return
	}
	defer pauser.In.Close()
	defer pauser.Out.Close()
	go func() {
		<-p.end
		pauser.End() // its end continues what it has stopped
	}()
	p.talk(pauser, nudge)
	<-pauser.Ended
}

// talk passes on each neighbour and waits for the answer, until the pause or the pausing process ends.
func (p *pause) talk(pauser *proc.Child, nudge func()) {
	answers := bufio.NewReader(pauser.Out)
	for {
		select {
		case <-p.end:
			return
		case <-pauser.Ended:
			p.answers <- errors.New("the process that pauses them has ended")
			return
		case neighbour := <-p.add:
			_, err := fmt.Fprintln(pauser.In, neighbour.PID, neighbour.Start, neighbour.uid)
			_ = pauser.Out.SetReadDeadline(time.Now().Add(pauseAck + pauseSlack))
			line, wrong := answers.ReadString('\n')
			if err = errors.Join(err, wrong); err == nil && strings.TrimSpace(line) != pauseDone {
				err = errors.New(strings.TrimSpace(line))
			}
			p.answers <- err
			nudge()
			if err != nil {
				return
			}
		}
	}
}
