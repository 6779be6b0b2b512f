// SPDX-License-Identifier: Apache-2.0

// Package guard holds the driver files of a job's dead clients until their work on the GPU is done. So the other
// clients live, however a client ends.
//
// The neighbours of a dying client die because its /dev/nvidia-uvm files are released while its work is in flight
// (measured: docs/decisions.md, 23). The guard is a process of root outside of the job. It finds every client of the job
// by itself and duplicates the client's driver files before the first kernel can run. It closes the duplicates when the
// work is done, or when another client or the job needs the memory.
//
// The guard of a job, its input and its output:
//
//	inotify of /dev/nvidia-uvm, line of a daemon ──▶ scan ──▶ take ──▶ living
//	                    (every 10 s without either)                        │ pidfd: the process has ended
//	                                                                       ▼
//	closed ◀── closing ◀── release: work done, no neighbour, room ◀────── dead
//	                         ▲               │ needed, and work in flight
//	              gauge (gpu-usage)          └──▶ pause: the neighbours stop until the GPU is idle
//
// Each turn of the loop ends with the room for newcomers (room.go) and the state (save), which others read.
//
// The guard sends no signal to a client and opens no path of a user. It trusts only the kernel's data: process ids,
// start times, device numbers.
//
// Package take has the process that duplicates files, package pause the one that stops neighbours, and package gauge
// the wire to the one that asks the driver.
//
// # A guard without root
//
// A guard of the job's user can duplicate the files of the user's processes, if Yama's ptrace_scope is 0. It differs in
// its Record alone, which keeps no lease. Without the proc connector, which needs root, it knows of fewer clients how
// they have ended before Linux 6.15.
package guard

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/take"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// Options are the options of a guard. Each command line begins with the path of its program.
type Options struct {
	Job   uint32
	SLUID string // names the job's control groups since Slurm 26.05; "" if it does not
	UID   uint32 // the job's user: MPS serves no other user
	GID   uint32 // the group of the job
	lease.GuardSettings
	Devices string   // the folder of the device files, "/dev"
	Minors  []int    // N of /dev/nvidiaN for each GPU of the job
	Pipes   []string // the pipe folders of the job's daemons
	Logs    []string // the log folders of the job's daemons: a daemon writes a line when a client connects
	// Daemons returns the job's control daemons that have started. Their children are servers, not clients.
	Daemons func() []proc.Process
	Taker   []string                  // the command line of a process that calls take.Run(0)
	Pauser  []string                  // the command line of a process that calls pause.Run with the time that follows it
	Gauge   []string                  // the command line of gpu-usage; empty to run without it
	NameOf  func(proc.Process) string // the name of a client, as in "rank 3"; it may take a second; nil for nothing
	Log     func(Line)                // nil for nothing
	// Recorder is the command line of the program that records what the job uses; empty for none.
	Recorder []string
	Raised   bool // as in take.Takers
	Record   Record
	Warnings
}

// Record is what is kept of a job: by root, with a lease, or by the job's user, without one.
type Record interface {
	Promise(time.Time)                      // is told before each wait by when the guard acts again
	Guards() int                            // how many guards run on the node, about
	Leased() bool                           // whether the job's lease exists; a guard without a lease ends
	Published() bool                        // whether the job has its ticket; the recorder starts then
	Member(job string) bool                 // whether another job, by number or SLUID, shares the daemon, so that its processes may be clients
	TakerPlace() (*lease.TakerPlace, error) // takes a place among the node's takers; nil if they are not counted
	Save(lease.GuardState)                  // called by another goroutine than Run's, after changes, once a second at most
	SaveRoom(lease.Room)                    // called by another goroutine than Run's, after each change
}

const (
	// rareScan is the time between two scans without an event. Such a scan finds clients that no event reports.
	rareScan = 10 * time.Second
	// An event causes repeated scans for some time. cuInit opens two files, and the first kernel comes at least 30 ms
	// later (measured). A container's own device file gives no event: its first sign is the daemon's log line.
	eventScan   = 8 * time.Millisecond
	scanningFor = 160 * time.Millisecond
	// unwatchedScan is the time between two scans if the kernel allows no watch.
	unwatchedScan = 20 * time.Millisecond
	// restScans is the minimum ratio of the rest after a scan to the scan's processor time. A user with 1,000
	// processes makes scans slow.
	restScans = 2
	// heldCheck is the time between two checks of the memory while a dead client's files are held.
	heldCheck = 25 * time.Millisecond
	saveEvery = time.Second
	// maxLines limits the log lines about single clients, because a user can start and end any number of clients.
	maxLines = 200
)

// Guard is the guard of one job. One goroutine runs it. Other goroutines close files, because the driver takes up to
// 0.4 s to close a file (measured).
type Guard struct {
	Options
	kernel   *kernel
	events   *events
	scans    schedule
	budget   budget
	verified time.Time // the last check of a client (verifyClients)
	exits    exits
	pauses   pauses
	rooms    rooms
	usage    usages
	takers   take.Takers
	recorder *recorder // nil for none

	living    map[int]*client       // by pid
	dead      []*client             // in the order of their deaths
	ends      []end                 // of clients, lately
	counts    []gpuCount            // of each GPU, in this turn
	files     int                   // open duplicates
	closing   map[*client]time.Time // clients whose files are being closed, and when that was done
	nextCheck time.Time             // of the memory, while a dead client's files are held
	unleased  bool                  // the lease was gone at the last full scan

	unguarded map[int]bool          // processes that could not be admitted, by pid
	dismissed map[proc.Process]bool // processes of the same user's other jobs, or with files that the guard may not take
	ofRoot    map[int]bool          // root's processes at the last scan, and whether each is a thread of the kernel
	servers   map[int]bool          // whether a pid is that of a server of the job; kept until the next full scan

	names map[proc.Process]string // of living clients and of dead ones with files

	results chan func(now time.Time) // from background
	// closings is the processor time of goroutines that have closed files, and gauges that of each gpu-usage that has
	// ended, in nanoseconds.
	closings, gauges atomic.Int64
	reporting
}

// reporting is the guard's output: the state on file, the job's own output and the log.
type reporting struct {
	state    lease.GuardState
	changed  bool // since the last save
	lastSave time.Time
	states   saver[lease.GuardState]
	notices  chan notice
	told     int             // notices
	asked    map[int]bool    // unguarded processes that are looked at again, by pid
	logged   map[string]bool // messages that are logged only once
	lines    int             // log lines about single clients
}

// New makes a guard. The guard receives events of the device files from now on.
func New(o Options) (*Guard, error) {
	e, err := openEvents()
	if err != nil {
		return nil, err
	}
	k := newKernel(o)
	g := &Guard{
		Options: o, kernel: k, events: e, exits: openExits(), pauses: pauses{never: o.Pause == 0},
		living: map[int]*client{}, closing: map[*client]time.Time{},
		unguarded: map[int]bool{}, dismissed: map[proc.Process]bool{}, names: map[proc.Process]string{},
		results: make(chan func(time.Time), maxFiles),
		reporting: reporting{
			state: lease.GuardState{Released: map[string]int{}}, changed: true,
			notices: make(chan notice, maxTold), logged: map[string]bool{}, asked: map[int]bool{},
		},
	}
	g.setUp(&g.takers)
	g.budget = newBudget(o, g.processorTime)
	k.asks.nudge = e.nudge
	g.servers, g.usage.ours = map[int]bool{}, g.isOurServer
	g.watch()
	return g, nil
}

func (g *Guard) setUp(t *take.Takers) {
	t.Line, t.Raised, t.Place = g.Taker, g.Raised, g.Record.TakerPlace
}

// watch adds inotify watches for openings of the driver's memory device and for lines in the daemons' logs. It keeps
// existing watches.
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

// Run guards until Stop is called or the lease is gone. It closes all files before it returns.
func (g *Guard) Run() {
	g.states, g.rooms.saver = newSaver(g.Record.Save), newSaver(g.Record.SaveRoom)
	go g.tellAll()
	g.startRecorder()
	_ = g.takers.Start() // before the first client; a failure is retried with the first client
	for stopped := false; !stopped; {
		deadline := latest(g.wakeUp(), time.Now())
		g.Record.Promise(deadline)
		seen := g.events.wait(deadline)
		g.turn(seen, time.Now())
		g.rest(time.Now())
		stopped = seen.stopped || g.unleased
	}
	g.finish()
}

// turn does what is due.
func (g *Guard) turn(seen seen, now time.Time) {
	g.kernel.asks.begin()
	g.takers.Begin()
	for _, pid := range seen.died {
		g.clientDied(pid, now)
	}
	if g.scanIsDue(seen, now) {
		g.scan(now)
	}
	g.learnEnds(now)
	g.verifyClients(now)
	needing := g.release(now)
	g.pauseFor(needing, now)
	g.publishRoom()
	g.save(now, false)
}

// rest charges a turn, and rests if the job's user has caused too much.
func (g *Guard) rest(now time.Time) {
	g.budget.charge(now)
	if rest := g.budget.rest(now); rest > 0 {
		g.Record.Promise(now.Add(rest))
		g.events.rest(rest)
	}
}

// scanIsDue notes events in the schedule, and reports whether the guard scans now. A death comes before a
// scan, unless deaths have put the scan off for long.
func (g *Guard) scanIsDue(seen seen, now time.Time) bool {
	if g.kernel.asks.returned.Swap(false) {
		g.scans.by(now.Add(eventScan))
	}
	if seen.opened {
		g.budget.opened = true
		g.scans.until = now.Add(scanningFor)
		if seen.line {
			g.scans.rested = earliest(g.scans.rested, g.budget.allow(now))
		}
		g.scans.by(now.Add(eventScan))
	}
	return !now.Before(g.scans.next) && (len(seen.died) == 0 || now.Sub(g.scans.ended) > scanningFor/4)
}

// finish closes all files, saves the last state and ends the helpers.
func (g *Guard) finish() {
	g.endPause(time.Now(), false)
	g.releaseAll()
	g.recorder.close()
	g.awaitResults(endWait, func() bool { return !g.usage.starting })
	if g.usage.gauge != nil {
		g.usage.gauge.Stop()
	}
	g.save(time.Now(), true)
	g.states.end()
	close(g.notices)
	g.rooms.end()
	g.recorder.end()
	g.exits.close()
	g.events.close()
}

// wakeUp returns when the guard must act without an event.
func (g *Guard) wakeUp() time.Time {
	next, check := g.scans.next, g.mayVerify(time.Now())
	if len(g.dead)+len(g.closing) > 0 {
		next = earliest(next, g.nextCheck)
	}
	if u := &g.usage; u.gauge != nil && u.answered && len(g.dead)+len(g.closing) > 0 {
		next = earliest(next, u.asked.Add(u.every))
	}
	if g.usage.gauge != nil && len(g.living)+len(g.dead) == 0 {
		next = earliest(next, g.usage.lastUse.Add(usageStays+time.Millisecond))
	}
	for _, c := range g.living {
		if !c.verify.IsZero() {
			next = earliest(next, latest(c.verify, check))
		}
	}
	if g.changed {
		next = earliest(next, g.lastSave.Add(saveEvery))
	}
	return next
}

// scan finds new clients and new files of clients. A full scan, which needs no event, also checks again what earlier
// scans have decided.
func (g *Guard) scan(began time.Time) {
	g.budget.measure()
	before := g.budget.turn
	g.events.rearm()
	clear(g.kernel.memories)
	full := !began.Before(g.scans.nextFull)
	if full {
		maps.DeleteFunc(g.dismissed, func(p proc.Process, _ bool) bool { return g.kernel.ended(p) })
		clear(g.servers)
		maps.DeleteFunc(g.unguarded, func(pid int, _ bool) bool { return !proc.Exists(pid) })
		g.unleased, g.budget.guards = !g.Record.Leased(), g.Record.Guards()
		g.findClosed(began)
		g.scans.nextFull = began.Add(rareScan)
	}
	if full || !g.kernel.knows(memoryFile) { // the node's first server may have loaded the memory driver
		g.kernel.findDevices()
		g.watch()
	}
	known := g.state.ClientsSeen + g.files
	g.find(full)
	if silent := g.kernel.asks.unanswered(); silent != g.state.Silent {
		g.state.Silent, g.changed = silent, true
	}
	g.exits.follow(g.living, g.dead)
	ended := time.Now()
	if g.state.ClientsSeen+g.files != known {
		g.budget.found(ended)
	}
	g.budget.measure()
	took := g.budget.turn
	g.budget.turn = before
	g.scans.end(ended, g.budget.scanned(took-before, ended), len(g.events.watched) > 0)
}

// save saves the state, once a second at most except for the last state.
func (g *Guard) save(now time.Time, last bool) {
	if !g.changed || !last && now.Before(g.lastSave.Add(saveEvery)) {
		return
	}
	g.state.Clients, g.state.Dead, g.state.Files = g.neighbours(), len(g.dead), g.files
	state := g.state
	state.Released, state.Outside = maps.Clone(state.Released), slices.Clone(state.Outside)
	state.Unguarded = slices.Clone(state.Unguarded)
	g.states.put(state)
	g.changed, g.lastSave = false, now
}

// logOnce logs a failure that may occur often.
func (g *Guard) logOnce(message string, err error) {
	if !g.logged[message] {
		g.logged[message] = true
		g.warn(message, err)
	}
}

// Line is a line of the guard's log. Fields are names and values in turns.
type Line struct {
	Warning bool
	Message string
	Err     error // nil for none
	Fields  []any
}

func (g *Guard) log(l Line) {
	if g.Log != nil {
		g.Log(l)
	}
}

func (g *Guard) warn(message string, err error, fields ...any) {
	g.log(Line{Warning: true, Message: message, Err: err, Fields: fields})
}

// logClient logs a line about a single client. After maxLines, clients are only counted in the state.
func (g *Guard) logClient(l Line) {
	if g.lines++; g.lines <= maxLines {
		g.log(l)
	}
}
