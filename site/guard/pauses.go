// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/pause"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// A dead client's work may be in flight as long as the driver's samples show work, and its neighbours' work keeps the
// samples above 0. So if the room that the dead client takes is needed, its neighbours are paused. Their queues run
// empty, the samples fall to 0, and then the files can be closed without harm.

const (
	minRest = time.Second
	// maxDoubled limits the rest after pauses that fail beside others' programs: to 17 h if hold is 1 minute.
	maxDoubled = 10
)

// pauses are the pauses of a guard: the present one and the end of the last one.
type pauses struct {
	now    *pausing  // nil for none
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

// pausing is one pause of neighbours.
type pausing struct {
	*pause.Pause
	own    time.Duration // the processor time of the guard itself when it began
	began  time.Time
	done   time.Time    // when the last dead client's files were closed, zero before that
	asked  map[int]bool // the pids of the neighbours that are to stop
	others bool         // others had programs on a dead client's GPU during the pause
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
	}
	for len(p.Answers) > 0 {
		if err := <-p.Answers; err != nil {
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
	case now.Sub(p.began) >= time.Duration(g.Options.Pause):
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
	rested := p.failed.Before(p.began) || now.Sub(p.began) >= cost*g.budget.ratio(share)
	begin := latest(p.next, earliest(p.apart, p.met.Add(time.Duration(g.Hold))))
	return !p.never && rested && !now.Before(begin) && g.budget.mayPause(now)
}

func (g *Guard) beginPause(needing []*client, now time.Time) {
	g.budget.measure()
	p := &pausing{
		Pause: pause.New(maxPaused, g.events.nudge), began: now, own: g.budget.total - g.budget.children, asked: map[int]bool{},
	}
	g.pauses.now, g.pauses.began, g.pauses.before = p, now, g.budget.children
	g.pauseMore(needing)
	go p.Run(g.Pauser, time.Duration(g.Options.Pause))
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
			p.Targets <- pause.Target{Process: other.proc, UID: g.UID}
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
	close(p.Over)
	g.budget.measure()
	g.pauses.cost = max(0, g.budget.total-g.budget.children-p.own)
	took := now.Sub(p.began)
	g.pauses.now = nil
	switch rest := max(took, minRest); {
	case idle:
		g.pauses.beside = 0
	case p.others:
		g.pauses.next, g.pauses.apart = now.Add(rest), now.Add(max(rest, time.Duration(g.Hold)<<min(g.pauses.beside, maxDoubled)))
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
