// SPDX-License-Identifier: Apache-2.0

// Package guard holds the driver files of a job's dead clients until their work on the GPU is done, so that the other
// clients live however one ends.
//
// What takes the neighbours of a dying client along is the release of its /dev/nvidia-uvm files while its work is in
// flight (measured: docs/decisions/023). The guard is a process of root outside of the job. It finds every client of the
// job by itself, duplicates the client's driver files before the first kernel can run, and closes the duplicates when the
// work is done or when someone needs the memory.
//
// The guard signals no one, opens no path of a user, and believes only the kernel: process ids, start times, device numbers.
package guard

import (
	"maps"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// Options say what a guard guards.
type Options struct {
	Job     uint32
	UID     uint32        // of the job's user: MPS serves no one else
	Hold    time.Duration // how long the files of a dead client are held although another client may need the memory
	Devices string        // the folder of the device files, "/dev"
	Minors  []int         // N of /dev/nvidiaN for each GPU of the job
	Pipes   []string      // the pipe folders of the job's daemons
	Logs    []string      // the log folders of the job's daemons: a daemon writes a line when a client comes
	// Daemons are the job's control daemons that have been started: their children are servers, not clients.
	Daemons func() []site.Process
	Taker   []string // the command line of a process that calls Take(0)
	// Usage is the path of the program gpu-usage, "" to do without, and UsageArgs its arguments.
	Usage     string
	UsageArgs []string
	Leased    func() bool            // the job's lease is still there: without it a guard ends
	Save      func(lease.GuardState) // called once a second at most, when something has changed, beside Run
	Log       zerolog.Logger
}

const (
	// rareLook is the time between two looks without a reason. Such a look finds a client of which no event tells.
	rareLook = 10 * time.Second
	// An event is a reason to look soon and for a while. cuInit opens two files, and the first kernel comes 30 ms later at
	// the earliest (measured). A container's own device file gives no event: its first sign is the daemon's log line.
	eventLook  = 8 * time.Millisecond
	lookingFor = 160 * time.Millisecond
	// unwatchedLook is the time between two looks when the kernel grants no watch.
	unwatchedLook = 20 * time.Millisecond
	// restLooks is how many times longer than a look computes the rest after it is at least: a user with 1,000 processes makes
	// looks slow.
	restLooks = 2
	// heldCheck is the time between two checks of the memory while files of the dead are held.
	heldCheck = 25 * time.Millisecond
	saveEvery = time.Second
	// saveWait bounds the wait for the last state at the end.
	saveWait = time.Second
	// maxLines bounds the lines of the log about single clients: a user can start and end as many as they like.
	maxLines = 200
)

// Guard is the guard of one job. One goroutine runs it. Files are closed beside it, because the driver takes up to 0.4 s to
// close one (measured).
type Guard struct {
	Options
	kernel *kernel
	events *events
	living map[int]*client // by pid
	dead   []*client       // in the order of their deaths
	files  int             // open duplicates
	closed chan int        // how many duplicates have been closed, from the goroutines that close
	state  lease.GuardState
	states chan lease.GuardState // the latest that is to be saved
	saved  chan struct{}         // closed when the last one is

	dismissed map[site.Process]bool // processes of the same user that are another job's
	ofRoot    map[int]bool          // processes of root's at the last look
	resume    int                   // the process that the next look begins with, 0 for the first
	outside   chan lease.Outside    // from the goroutines that ask why
	strangers chan site.Process     // processes of another job, from the goroutines that ask whose they are
	takers    takers

	unleased           bool
	usage              usages
	lastDead           time.Time // when there were dead clients last
	nextLook, nextFull time.Time
	rested             time.Time // no look before it
	lookUntil          time.Time // events are recent until then
	nextCheck          time.Time
	lastSave           time.Time
	changed            bool            // since the last save
	logged             map[string]bool // what is logged once
	lines              int             // about single clients
}

// New makes a guard. It sees the openings of device files from now on.
func New(o Options) (*Guard, error) {
	k, err := openKernel(o)
	if err != nil {
		return nil, err
	}
	e, err := openEvents()
	if err != nil {
		k.close()
		return nil, err
	}
	g := &Guard{
		Options: o, kernel: k, events: e, living: map[int]*client{}, closed: make(chan int, maxFiles),
		state: lease.GuardState{Released: map[string]int{}}, logged: map[string]bool{}, changed: true, dismissed: map[site.Process]bool{}, outside: make(chan lease.Outside, maxOutside), strangers: make(chan site.Process, maxOutside),
	}
	g.takers.line, g.takers.wait = o.Taker, takerWait
	g.states, g.saved = make(chan lease.GuardState, 1), make(chan struct{})
	g.watch()
	return g, nil
}

// watch asks the kernel to tell of openings of the driver's memory device and of lines in the daemons' logs. A watch that is
// there already stays.
func (g *Guard) watch() {
	err := g.events.watch(g.kernel.path(memoryFile), unix.IN_OPEN)
	if err != nil && g.kernel.knows(memoryFile) {
		g.logOnce("cannot watch the driver's device file: looking for clients every 20 ms", err)
	}
	for _, folder := range g.Logs {
		err := g.events.watch(folder, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
		if err != nil {
			g.logOnce("cannot watch a daemon's logs: a container with device files of its own is found late", err)
		}
	}
}

// Stop makes Run return. Any goroutine may call it.
func (g *Guard) Stop() { g.events.stop() }

// Run guards until Stop or until the lease is gone. It closes all files before it returns.
func (g *Guard) Run() {
	go g.saveAll()
	_ = g.takers.start() // before the first client; what fails now is tried again with it
	for stopped := false; !stopped; {
		seen := g.events.wait(g.wakeUp(time.Now()))
		now := time.Now()
		for _, pid := range seen.died {
			g.clientDied(pid, now)
		}
		if seen.opened {
			g.lookUntil = now.Add(lookingFor)
			g.lookBy(now.Add(eventLook))
		}
		if !now.Before(g.nextLook) {
			g.look(now)
		}
		g.verifyClients(now)
		g.noteOutside()
		g.dismissStrangers()
		g.release(now)
		g.save(now, false)
		stopped = seen.stopped || g.unleased
	}
	g.releaseAll()
	if g.usage.coming != nil {
		g.usage.gauge = <-g.usage.coming
	}
	if g.usage.gauge != nil {
		g.usage.gauge.stop()
	}
	g.save(time.Now(), true)
	close(g.states)
	select {
	case <-g.saved:
	case <-time.After(saveWait):
	}
	g.events.close()
	g.kernel.close()
}

// wakeUp is when the guard has something to do without an event.
func (g *Guard) wakeUp(now time.Time) time.Time {
	next := g.nextLook
	if len(g.dead) > 0 && g.nextCheck.Before(next) {
		next = g.nextCheck
	}
	if stays := g.lastDead.Add(usageStays + time.Millisecond); g.usage.gauge != nil && stays.Before(next) {
		next = stays
	}
	if verify := g.nextVerify(); !verify.IsZero() && verify.Before(next) {
		next = verify
	}
	if save := g.lastSave.Add(saveEvery); g.changed && save.Before(next) {
		next = save
	}
	return next
}

// lookBy makes the next look no later than at a time, or than the end of the rest.
func (g *Guard) lookBy(t time.Time) {
	if t.Before(g.rested) {
		t = g.rested
	}
	if t.Before(g.nextLook) {
		g.nextLook = t
	}
}

// look finds new clients, and new files of clients. A full look, without a reason, also looks again at what was settled.
func (g *Guard) look(began time.Time) {
	g.events.rearm()
	full := !began.Before(g.nextFull)
	if full {
		maps.DeleteFunc(g.dismissed, func(p site.Process, _ bool) bool { return !p.Running() })
		g.unleased = !g.Leased()
		g.partClients(began)
		g.nextFull = began.Add(rareLook)
	}
	if full || !g.kernel.knows(memoryFile) { // the node's first server may have the memory driver loaded
		g.kernel.findDevices()
		g.watch()
	}
	before := computed()
	g.find(full)
	ended := time.Now()
	rest := max(eventLook, restLooks*(computed()-before))
	g.rested = ended.Add(rest)
	switch {
	case !g.events.watches():
		g.nextLook = ended.Add(max(unwatchedLook, rest))
	case ended.Before(g.lookUntil):
		g.nextLook = ended.Add(rest)
	default:
		g.nextLook = ended.Add(max(rareLook, rest))
	}
}

// computed is the processor time that this process has used.
func computed() time.Duration {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// save has the state saved, once a second at most unless it is the last.
func (g *Guard) save(now time.Time, last bool) {
	if !g.changed || !last && now.Before(g.lastSave.Add(saveEvery)) {
		return
	}
	g.state.Clients, g.state.Dead, g.state.Files = g.neighbours(), len(g.dead), g.files
	select {
	case <-g.states: // an older one that is not saved yet
	default:
	}
	state := g.state
	state.Released, state.Outside = maps.Clone(state.Released), slices.Clone(state.Outside)
	g.states <- state
	g.changed, g.lastSave = false, now
}

// saveAll saves what save hands over. Run waits for no disk: a client that opens its files meanwhile has 30 ms.
func (g *Guard) saveAll() {
	for state := range g.states {
		g.Save(state)
	}
	close(g.saved)
}

// logOnce logs a failure that may come again and again.
func (g *Guard) logOnce(message string, err error) {
	if !g.logged[message] {
		g.logged[message] = true
		g.Log.Warn().Err(err).Msg(message)
	}
}

// silent is the log of what is not logged.
var silent = zerolog.Nop()

// often is the log for lines about single clients. After maxLines the state alone counts them.
func (g *Guard) often() *zerolog.Logger {
	if g.lines++; g.lines > maxLines {
		return &silent
	}
	return &g.Log
}
