// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// The reasons why a dead client's files were closed.
const (
	noNeighbour = lease.NoNeighbour
	workDone    = "work done"      // the GPUs were idle after its death
	noContext   = "no context"     // it has used CUDA or NVML for questions only
	endedWell   = "ended in order" // its status was 0, and the GPU has not plenty of room
	holdOver    = "hold over"      // the room was needed for the time of the policy's hold, and no pause has helped
	atBound     = "bound"          // the limit of files was reached, and another client needed some
	atEnd       = "end"            // the guard ended
)

const (
	// newcomerHold is the time for which files are held beside a newer client if the use of the GPU is not known, as
	// with MIG.
	newcomerHold = 2 * time.Second
	// pauseAfter is the time after a death before the neighbours are paused. If one rank dies, a launcher often ends
	// the others, and then no pause is needed. A newer client is paused at once, before it allocates memory: that is
	// 80 ms after it has opened its first file, or later (measured on an H200).
	pauseAfter = 250 * time.Millisecond
	// freeWait is the maximum time from the close of a client's files until the driver has freed its memory. That is
	// an assumption: on an H200 the memory was free when the close returned.
	freeWait = 500 * time.Millisecond
	// endWait limits the closing of all files at the end.
	endWait = 1500 * time.Millisecond
)

// situation is everything on which the decision about a dead client's files depends.
type situation struct {
	age        time.Duration // since its death
	unknown    time.Duration // how long gpuKnown has been false, if it is
	inOrder    bool          // it has ended with status 0, or has closed its files itself
	neighbours bool          // another client of its GPUs is alive
	newer      bool          // a neighbour opened its files after this client's death
	pending    bool          // the GPUs' usage will be known soon
	gpuKnown   bool          // the GPUs' free memory and utilisation are known
	idle       bool          // the work of the job that was in flight at its death is done
	others     bool          // programs of others have contexts on the GPUs
	hopeless   bool          // others work there, so a pause could not prove in its time that the job's work is done
	noContext  bool          // the driver lists no context of it
	tight      bool          // places or host memory are not plentiful, whatever the GPUs' memory is
	roomy      bool          // at least half of the GPUs' places and memory is free, and the host has memory
	short      bool          // a program may need the room that dead clients take
	paused     bool          // a pause is not allowed, or one after hold has ended without an idle GPU
}

// releaseReason returns the reason to close the files now, or "" to hold them. While neighbours live and no program
// needs the room, the files are held without limit. The reason is an endless kernel: it kills the neighbours whenever
// its files are closed (measured). Work that may be in flight is not let go because something is short, before hold
// is over. Beside others' programs it is not let go then, because a stranger's work can make each pause fail.
func (s situation) releaseReason(hold time.Duration) string {
	switch {
	case s.idle:
		return workDone
	case s.inOrder && s.noContext:
		return noContext
	case s.inOrder && !s.roomy && (s.tight || !s.pending):
		return endedWell
	case !s.neighbours && !s.pending && (!s.gpuKnown || s.age >= hold):
		return noNeighbour
	case !s.neighbours:
		return ""
	case s.short && s.age >= hold && (s.inOrder || s.paused && !s.others):
		return holdOver
	case !s.gpuKnown && !s.pending && (s.newer && s.unknown >= newcomerHold || s.unknown >= hold):
		return holdOver
	}
	return ""
}

// needsPause reports whether the neighbours must be paused, so that the GPU gets idle. It does not matter here whether
// a pause can help.
func (s situation) needsPause() bool {
	return s.short && s.neighbours && s.gpuKnown && !s.inOrder && (s.newer || s.age >= pauseAfter)
}

// release closes the dead clients' files that are due. It returns the clients for which the neighbours must be paused.
func (g *Guard) release(now time.Time) (needing []*client) {
	g.noteResults(now)
	g.readUsage(now)
	g.wantUsage(now)
	g.noteFreed(now)
	if len(g.dead)+len(g.closing) == 0 {
		return nil
	}
	if !now.Before(g.nextCheck) {
		g.nextCheck = latest(now.Add(heldCheck), earliest(g.budget.calm(now), now.Add(maxRest)))
		clear(g.kernel.memories)
		for _, c := range g.dead {
			c.hostShort = g.hostShort(c)
		}
	}
	g.countClients(now)
	g.pauses.vain, g.pauses.others = false, false
	for _, c := range slices.Clone(g.dead) {
		s := g.situation(c, now)
		if reason := s.releaseReason(time.Duration(g.Hold)); reason != "" {
			c.wasRoomy = s.roomy
			g.countDead(c, -1)
			g.releaseClient(c, reason)
			continue
		}
		if s.others {
			g.pauses.others, g.pauses.met = true, now
		}
		switch {
		case s.needsPause() && s.hopeless:
			g.pauses.vain = true
		case s.needsPause():
			needing = append(needing, c)
		}
		g.tellEnd(c, s, now)
	}
	return needing
}

// situation collects all facts about a dead client, from the counts of this turn. It reads nothing. If the client's
// room has been needed once, it stays so, because newcomers may be on their way to the GPU.
func (g *Guard) situation(c *client, now time.Time) situation {
	s := situation{age: now.Sub(c.died), inOrder: c.inOrder, pending: g.usage.pending(c, now), paused: g.pauses.over(c.died.Add(time.Duration(g.Hold)))}
	places := 0
	for i := range g.each(c.gpus) {
		n := &g.counts[i]
		s.neighbours = s.neighbours || n.living > 0
		s.newer = s.newer || n.newest.After(c.died)
		places = max(places, n.places)
	}
	s.tight = places > g.Clients/2 || c.hostShort
	s.roomy, s.short = !s.tight, s.tight
	g.addUsage(c, &s, now)
	switch {
	case s.gpuKnown:
		c.unknown = time.Time{}
	case c.unknown.IsZero():
		c.unknown = now
	}
	s.unknown = now.Sub(c.unknown)
	c.needed = c.needed || s.short
	s.short, s.roomy = c.needed, s.roomy && !c.needed
	c.keepsOut = s.short || s.pending
	return s
}

// mayUse reports whether a client may use one of some GPUs. A client with unknown GPUs may use any.
func (c *client) mayUse(gpus uint64) bool { return c.gpus == 0 || c.gpus&gpus != 0 }

// shareGPU reports whether two clients may use the same GPU. A client with unknown GPUs may use any.
func shareGPU(a, b *client) bool { return a.gpus == 0 || b.gpus == 0 || a.gpus&b.gpus != 0 }

// gpusOf returns the GPUs of some clients, or 0 if one of them may use any.
func gpusOf(clients []*client) (gpus uint64) {
	for _, c := range clients {
		if c.gpus == 0 {
			return 0
		}
		gpus |= c.gpus
	}
	return gpus
}

// releaseClient closes a dead client's files.
func (g *Guard) releaseClient(c *client, reason string) {
	g.dead = slices.DeleteFunc(g.dead, func(other *client) bool { return other == c })
	if reason == noContext {
		g.forget(c)
	}
	g.tellReleased(c, reason)
	g.close(c)
	if !c.lives {
		delete(g.names, c.proc)
	}
	g.state.Released[reason]++
	g.changed = true
	if reason != atEnd {
		g.logClient(Line{
			Message: "let go of a dead client's files",
			Fields:  []any{"pid", c.proc.PID, "end", c.exit.String(), "reason", reason, "held_ms", time.Since(c.died)},
		})
	}
}

// close closes the files that no other client has, in another goroutine. It closes the memory files first.
func (g *Guard) close(c *client) {
	var memory, control []int
	for _, f := range c.files {
		if f.users--; f.users > 0 {
			continue
		}
		if f.kind == memoryFile {
			memory = append(memory, f.fd)
		} else {
			control = append(control, f.fd)
		}
	}
	c.files = nil
	g.closing[c] = time.Time{}
	g.background(func() func(time.Time) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before := computed(unix.RUSAGE_THREAD)
		for _, fd := range slices.Concat(memory, control) {
			_ = unix.Close(fd)
		}
		g.closings.Add(int64(computed(unix.RUSAGE_THREAD) - before))
		return func(now time.Time) {
			g.files -= len(memory) + len(control)
			g.closing[c], g.changed = now, true
		}
	})
}

// noteFreed forgets the clients whose memory is free. The driver may free it some time after the close.
func (g *Guard) noteFreed(now time.Time) {
	maps.DeleteFunc(g.closing, func(c *client, closed time.Time) bool {
		switch {
		case closed.IsZero(): // the close has not returned
			return false
		case c.lives || c.namespaced || g.usage.gauge == nil || now.Sub(closed) > freeWait:
			return true
		}
		return g.usage.asOf.After(closed) && !g.usage.lists(c)
	})
}

// makeRoom closes the files of the longest dead client, if there is one.
func (g *Guard) makeRoom() bool {
	if len(g.dead) == 0 {
		return false
	}
	g.releaseClient(g.dead[0], atBound)
	return true
}

// releaseAll closes all files and waits for the end of the closing.
func (g *Guard) releaseAll() {
	g.takers.Abandon(0)
	for _, c := range slices.Clone(g.dead) {
		g.releaseClient(c, atEnd)
	}
	for pid, c := range g.living {
		delete(g.living, pid)
		g.events.unfollow(c.pidfd)
		g.close(c)
	}
	if !g.awaitResults(endWait, func() bool { return g.files == 0 }) {
		g.warn("the driver does not close all files", nil, "files", g.files)
	}
}
