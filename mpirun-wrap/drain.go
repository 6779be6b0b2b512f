package mpirunwrap

import (
	"context"
	"errors"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// The rank is ended in this order: stop at once, wait for Drain, have the daemon terminate what may have longer work,
// kill. A stopped rank harms nobody who kills it later, so the stop comes before all else. Each step has a bound.
const (
	// terminatePatience is for one terminate_client: at most 0.31 s was measured, and 2 in 270 calls hung.
	terminatePatience = 2 * time.Second
	// turnPatience is for all the ranks that are terminated before this one.
	turnPatience = 6 * time.Second
	// mostTerminated is the most ranks that are terminated together, one after the other: each runs again in its turn,
	// and a launcher's SIGKILL may meet it then. 2 took 30 ms and 8 took 0.25 s, bare of all else (measured), and Open
	// MPI leaves 0.4 s after the drain. In a larger crowd every rank stays stopped, for longer, instead.
	mostTerminated = 4
	// longer is the drain, in units of Drain, where the daemon could not be asked or did not answer.
	longer = 3
	// clearing is how long the files of a terminated process are held on. The first that a server ends after a fatal error
	// may be gone before its work is: 13 of 39 took their neighbour along when the files went at once, none of 15 when they
	// went so much later (measured: decision 021).
	clearing = 300 * time.Millisecond
	// killPatience is for a killed process to be gone: one in the midst of a system call may take its time.
	killPatience = 5 * time.Second
	// mostLooks bounds the search for processes that a rank forks while it is being stopped.
	mostLooks = 100
	// statusPatience is for the status of a dead process, which comes at once unless threads of it live on.
	statusPatience = time.Second
	poll           = 2 * time.Millisecond
)

// ErrNoClient is Terminate's answer for a process that the daemon does not serve: it has no work in flight there.
var ErrNoClient = errors.New("the daemon has no such client")

// held is what has been stopped.
type held map[site.Proc]bool

// end ends the rank on account of a signal, or of noSignal, and returns the wrapper's code.
func (g *guard) end(received unix.Signal) int {
	if err := g.peers.enter(); err != nil {
		g.say("%v", err)
	}
	stopped := held{}
	began := time.Now()
	catching := g.stop(stopped, received)
	for _, p := range catching {
		g.pass(p, received)
	}
	g.say("%s: %d processes stopped, %d catch it", unix.SignalName(received), len(stopped), len(catching))
	g.drain(stopped, began)
	g.grace(catching, began)
	if !g.endedByItself() {
		g.endRest()
	} else if g.status.Signaled() { // a crash that the signal found, or what the program made of the signal
		close(g.asked)
		g.linger(g.heldFor(g.status))
	}
	if g.files.count.Load() > 0 {
		g.pause(g.terminated.Add(clearing))
	}
	g.peers.leave()
	g.peers.await(2 * g.Drain)
	return g.codeFor(received)
}

// codeFor is the program's own where it ended by itself; else what it would have been without a wrapper.
func (g *guard) codeFor(received unix.Signal) int {
	switch {
	case g.endedByItself():
		return codeOf(g.status)
	case received == noSignal:
		return outsideCode
	}
	return 128 + int(received)
}

// stop stops every process of the rank but those that catch the signal, which it returns; noSignal is caught by none. It
// looks again until it finds no new one: what is not stopped yet may fork.
func (g *guard) stop(stopped held, received unix.Signal) []site.Proc {
	for look := 1; ; look++ {
		var catching []site.Proc
		before := len(stopped)
		for _, p := range descendants() {
			switch {
			case stopped[p]:
			case received != noSignal && catches(p.PID, received):
				catching = append(catching, p)
			default:
				_ = p.Kill(unix.SIGSTOP)
				stopped[p] = true
			}
		}
		if len(stopped) == before || look == mostLooks {
			return catching
		}
	}
}

// grace waits until the processes that catch the signal have ended, at most for Grace; another signal cuts it short, but
// for an echo of the first.
func (g *guard) grace(catching []site.Proc, began time.Time) {
	if len(catching) == 0 {
		return
	}
	over := func() bool { return g.endedByItself() || !anyAlive(catching) }
	for !over() && time.Since(began) < g.Grace {
		if second := g.wait(began.Add(g.Grace), over); second && time.Since(began) > g.Drain {
			return
		}
	}
}

// endedByItself reports whether the program has ended without our doing: then what it left behind is left alone, as
// without a wrapper. One that is dead and not waited for yet has its status in a moment.
func (g *guard) endedByItself() bool {
	if g.killed {
		return false
	}
	stat, err := site.ReadStat(g.program)
	if err != nil || stat.State == 'Z' || stat.State == 'X' {
		ctx, cancel := context.WithTimeout(context.Background(), statusPatience)
		defer cancel()
		return g.settle(ctx)
	}
	return false
}

// endRest ends all that lives still, drained like the rest.
func (g *guard) endRest() {
	for {
		stopped := held{}
		began := time.Now()
		g.stop(stopped, noSignal)
		if len(stopped) == 0 {
			return
		}
		if !g.drain(stopped, began) {
			g.say("%d processes do not go", len(stopped))
			return
		}
	}
}

// drain waits for the work in flight of stopped processes and ends them. It reports whether all are gone.
func (g *guard) drain(stopped held, since time.Time) bool {
	var busy, all []site.Proc
	for p := range stopped {
		all = append(all, p)
		if usesCUDA(p.PID) {
			busy = append(busy, p)
		}
	}
	if len(busy) > 0 {
		g.pause(since.Add(g.Drain))
		g.finish(busy, since)
	}
	return g.kill(all)
}

// finish makes sure of work that is longer than the drain. A second signal from here on ends the wait.
func (g *guard) finish(busy []site.Proc, since time.Time) {
	if g.Terminate == nil {
		return
	}
	if peers := g.peers.draining(); peers >= mostTerminated {
		g.say("%d other ranks drain: not terminated one by one", peers)
		g.wait(since.Add(longer*g.Drain), never)
		return
	}
	for _, p := range busy {
		again, err := g.terminate(p)
		if err != nil && !errors.Is(err, ErrNoClient) {
			g.say("%v", err)
			g.wait(again.Add(longer*g.Drain), never)
		}
	}
}

// terminate lets a process continue, since to terminate a stopped one hangs (measured), has the daemon terminate it and
// kills it. Where that fails the process is stopped again, at the time returned.
func (g *guard) terminate(p site.Proc) (again time.Time, err error) {
	again = time.Now()
	patient, cancel := context.WithTimeout(context.Background(), turnPatience)
	defer cancel()
	done, err := g.peers.turn(patient)
	if err != nil {
		return again, err
	}
	defer done()
	g.claim(p) // its calls return 810 from now on, and most programs end of that
	_ = p.Kill(unix.SIGCONT)
	err = g.ask(p.PID)
	if err != nil && p.Alive() {
		_ = p.Kill(unix.SIGSTOP)
		return time.Now(), err
	}
	g.kill([]site.Proc{p})
	g.terminated = time.Now()
	return again, nil
}

// ask asks the daemon, and nobody waits for the children of whoever asks meanwhile.
func (g *guard) ask(pid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), terminatePatience)
	defer cancel()
	g.reaping.Lock()
	defer g.reaping.Unlock()
	return g.Terminate(ctx, pid)
}

// kill ends processes and waits until they are gone.
func (g *guard) kill(procs []site.Proc) bool {
	for _, p := range procs {
		g.claim(p)
		_ = p.Kill(unix.SIGKILL)
	}
	ctx, cancel := context.WithTimeout(context.Background(), killPatience)
	defer cancel()
	for anyAlive(procs) {
		if !site.Pause(ctx, poll) {
			return false
		}
	}
	if g.killed {
		g.settle(ctx)
	}
	return true
}

// claim notes that what becomes of the program is our doing, unless it has ended by itself.
func (g *guard) claim(p site.Proc) {
	if p.PID == g.program && !g.endedByItself() {
		g.killed = true
	}
}

// settle waits for the program's status and reports whether it has come.
func (g *guard) settle(ctx context.Context) bool {
	select {
	case <-g.ended:
		return true
	case <-ctx.Done():
		return false
	}
}

func anyAlive(procs []site.Proc) bool {
	for _, p := range procs {
		if p.Alive() {
			return true
		}
	}
	return false
}

// pause waits until a time, whatever comes. Signals that come meanwhile are echoes of the first: slurmd and mpirun both
// send one when a job with mpirun in it is cancelled.
func (g *guard) pause(until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	<-timer.C
	for {
		select {
		case <-g.signals:
		default:
			return
		}
	}
}

// wait waits until a time, or until done, or for another signal, and reports whether that came.
func (g *guard) wait(until time.Time, done func() bool) bool {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for !done() {
		select {
		case <-timer.C:
			return false
		case <-ticker.C:
		case <-g.signals:
			return true
		}
	}
	return false
}

func never() bool { return false }
