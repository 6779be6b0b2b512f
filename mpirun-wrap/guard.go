package mpirunwrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// GuardOptions say how a guarded rank is ended. A duration of 0 is its default.
type GuardOptions struct {
	Drain      time.Duration // how long a stopped rank waits for its work in flight before it is ended
	Grace      time.Duration // how long a program that catches the signal has to end by itself
	Peers      string        // folder that the wrappers of the job on this node share, writable by the user; "" for none
	Rank, Size int           // on this node; for messages
	// Terminate has the control daemon end a client whose process runs: it must return at the end of ctx, and must have
	// waited for any process that it started. nil where there is no daemon.
	Terminate func(ctx context.Context, pid int) error
	// Broadcast says that whoever signals the wrapper signals all processes of the rank, as slurmstepd, mpirun and
	// hydra do: what a process catches has reached it then, and is not sent a second time.
	Broadcast bool
	Device    string        // the memory driver's device file, whose opening tells of a new client; "" for none
	Verify    *Verification // nil: nobody looks whether the rank is under MPS
	Err       io.Writer     // where a message goes
	Verbose   bool          // say what is done with a signal
}

// DefaultDrain is the longest time that leaves room for terminate_client, 11 ms to 0.3 s, before the SIGKILL that Open
// MPI sends one second after its SIGTERM. It outlasts kernels of 400 ms (measured on an H200: 10 of 10 with 0.6 s).
const DefaultDrain = 600 * time.Millisecond

// DefaultGrace leaves 10 s of Slurm's default KillWait of 30 s to stop, drain and end a program that does not end itself.
const DefaultGrace = 20 * time.Second

// guard is the parent of one rank's program.
type guard struct {
	GuardOptions
	peers      peers
	files      *keeper
	program    int // its pid, which is no other process's until ended is closed
	signals    chan os.Signal
	ended      chan struct{} // closed when the program has been waited for
	status     syscall.WaitStatus
	fate       atomic.Int32
	code       chan int      // of a rank that a signal ends
	killed     bool          // we ended the program; only the guard's own goroutine touches it
	terminated time.Time     // when the daemon had last terminated one of the rank's processes
	reaping    sync.Mutex    // held while somebody else's children may not be waited for
	asked      chan struct{} // closed when a signal has asked for the end and the program has ended by itself
	outside    chan struct{} // has one when the rank is to be ended for being outside MPS
}

// A rank's fate is decided once: its program ends, or a signal asks for its end first.
const (
	undecided int32 = iota
	endsItself
	isEnded
)

// fatal are the signals that a wrapper may get and that end a program which does not expect them. SIGTERM and SIGINT the
// program ignores from its start; the others reach it as they would without a wrapper where its whole group gets them.
var fatal = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGXCPU,
	unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGPWR}

// Guard runs the program argv[0] as its parent, harms no neighbour when a signal asks for its end, and returns the code
// that the wrapper ends with: the program's own, or 128+n where it died of signal n or was ended on account of signal n.
// The error is a *ProgramError where the program could not be run.
//
// Guard waits for every child of this process, so it is to be called by a process that has no others.
func Guard(argv, env []string, o GuardOptions) (code int, err error) {
	path, err := Look(argv[0], env)
	if err != nil {
		return 0, err
	}
	g, err := newGuard(o)
	if err != nil {
		return 0, err
	}
	if g.Verify != nil {
		g.Verify.log = follow(g.Verify.LogDir)
	}
	g.program, err = fork(path, argv, env)
	if err != nil {
		return 0, err
	}
	go g.watch()
	time.AfterFunc(firstLook, g.files.keep) // no goroutine before: that would cost the start a thread
	if g.Verify != nil {
		began := time.Now()
		time.AfterFunc(looks[0], func() { g.verify(began) })
	}
	g.await() // here, so that the end of the program wakes no other thread first
	if g.fate.CompareAndSwap(undecided, endsItself) {
		g.holdOn()
		return codeOf(g.status), nil
	}
	go g.reap()
	return <-g.code, nil
}

func newGuard(o GuardOptions) (*guard, error) {
	if o.Drain <= 0 {
		o.Drain = DefaultDrain
	}
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	if o.Err == nil {
		o.Err = io.Discard
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("cannot guard rank %d: cannot become subreaper: %w", o.Rank, err)
	}
	g := &guard{GuardOptions: o, peers: peers{dir: o.Peers}, signals: make(chan os.Signal, 16), ended: make(chan struct{}), code: make(chan int, 1), asked: make(chan struct{}), outside: make(chan struct{}, 1)}
	g.files = newKeeper(o.Device, g.say)
	var expected []os.Signal
	for _, s := range fatal {
		if !signal.Ignored(s) { // as nohup has it, and as the program will have it
			expected = append(expected, s)
		}
	}
	signal.Notify(g.signals, expected...) // for good: this process ends with its rank
	return g, nil
}

// await waits until the program has ended, and for every orphan that this process inherits as subreaper meanwhile.
func (g *guard) await() {
	for g.reapOne() != g.program {
	}
	close(g.ended)
}

// reap waits for what the program leaves while that is being ended.
func (g *guard) reap() {
	for g.reapOne() >= 0 {
	}
}

// reapOne returns the pid of a child that it has waited for, 0 where that was not ours to wait for, and -1 where there is
// none. It looks for the dead without waiting for them first, so that it takes no child of whoever holds the lock.
func (g *guard) reapOne() int {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
	if errors.Is(err, unix.ECHILD) {
		return -1
	}
	if err != nil {
		return 0
	}
	g.reaping.Lock()
	defer g.reaping.Unlock()
	var status unix.WaitStatus
	dead, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
	if err != nil {
		return 0
	}
	if dead == g.program {
		g.status = syscall.WaitStatus(status)
	}
	return dead
}

// watch waits for a reason to end the program, and ends it.
func (g *guard) watch() {
	reason := g.reason()
	if g.fate.CompareAndSwap(undecided, isEnded) {
		g.code <- g.end(reason)
		return
	}
	close(g.asked)
}

// reason is the signal that asks for the program's end, or noSignal where the program is outside MPS.
func (g *guard) reason() unix.Signal {
	for {
		select {
		case <-g.outside:
			return noSignal
		case s := <-g.signals:
			if received := s.(unix.Signal); g.asksForEnd(received) {
				return received
			}
		}
	}
}

// noSignal is none, so no process catches it.
const noSignal unix.Signal = 0

// asksForEnd reports whether a signal to the wrapper means the end of the program, and passes it on where it does not:
// only what the program neither expects nor ignores of itself would have ended it. SIGTERM and SIGINT always ask.
func (g *guard) asksForEnd(received unix.Signal) bool {
	switch received {
	case unix.SIGTERM, unix.SIGINT:
		return true
	}
	select {
	case <-g.ended: // its pid may be another's now
		return true
	default:
	}
	switch received {
	case unix.SIGHUP, unix.SIGXCPU:
		return !ignores(g.program, received)
	}
	if !catches(g.program, received) {
		return !ignores(g.program, received)
	}
	if stat, err := site.ReadStat(g.program); err == nil {
		g.pass(stat.Proc, received)
	}
	return false
}

// pass gives a process the signal that the wrapper got, unless it has got it itself.
func (g *guard) pass(p site.Proc, received unix.Signal) {
	if g.Broadcast || fromKeyboard(received) {
		return
	}
	_ = p.Kill(received)
}

// fromKeyboard reports whether a signal most likely came from the terminal, which sends it to its whole foreground group.
func fromKeyboard(received unix.Signal) bool {
	if received != unix.SIGINT && received != unix.SIGQUIT {
		return false
	}
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	foreground, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}

// codeOf is the exit code for how a program ended.
func codeOf(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

func (g *guard) say(format string, values ...any) {
	if g.Verbose {
		fmt.Fprintf(g.Err, "mpirun-wrap: rank %d: %s\n", g.Rank, fmt.Sprintf(format, values...))
	}
}
