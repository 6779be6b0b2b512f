// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// The reasons why a dead client's files were closed.
const (
	noNeighbour = lease.NoNeighbour
	workDone    = "work done"   // the GPUs were idle after its death
	holdOver    = "hold over"   // the policy's hold was over and a newer client had come
	gpuMemory   = "gpu memory"  // a newer client may need the GPU's memory
	hostMemory  = "host memory" // the job's control group, or the node, ran short of memory
	noPlace     = "no place"    // the GPU can serve no more clients, because dead clients with held files count, too
	atBound     = "bound"       // the limit of files was reached, and another client needed some
	atEnd       = "end"         // the guard ended
)

const (
	// minHold is the minimum time for which files are held, even if memory is short. Most programs have finished their
	// work in flight by then.
	minHold = 100 * time.Millisecond
	// newcomerHold is the time for which files are held beside a newer client in two cases. In the first case, the
	// GPU can serve few more clients. In the second case, its free memory is unknown. A GPU accepts four clients a
	// second (measured on an H200), so eight may come in this time.
	newcomerHold = 2 * time.Second
	// sparePlaces is how many places of a GPU are left for clients that are not yet found. All clients with open
	// files take places, also dead clients. If no place is left, the next client gets an error, whichever clients are
	// dead (measured on an H200).
	sparePlaces = 4
	// endWait limits the closing of all files at the end.
	endWait = 1500 * time.Millisecond
)

// situation is everything on which the decision about a dead client's files depends.
type situation struct {
	age        time.Duration // since its death
	neighbours bool          // another client of its GPUs is alive
	newer      bool          // a neighbour opened its files after this client's death
	pending    bool          // the GPUs' usage will be known soon
	gpuKnown   bool          // the GPUs' free memory and utilisation are known
	gpuShort   bool          // the GPUs have too little memory for one more client
	full       bool          // the GPUs can serve few more clients, because dead ones count
	idle       bool          // the GPUs have done no work since its death
	hostShort  bool
}

// releaseReason returns the reason to close the files now, or "" to hold them. While neighbours live and the memory
// is not needed, the files are held without limit. The reason is an endless kernel: it kills the neighbours whenever
// its files are closed (measured).
func (s situation) releaseReason(hold time.Duration) string {
	switch {
	case s.idle:
		return workDone
	case !s.neighbours && !s.pending && (!s.gpuKnown || s.age >= hold):
		return noNeighbour
	case !s.neighbours || s.age < minHold:
		return ""
	case s.hostShort:
		return hostMemory
	case s.newer && s.full && s.age >= newcomerHold:
		return noPlace
	case s.newer && s.gpuShort:
		return gpuMemory
	case s.newer && s.age >= hold:
		return holdOver
	case !s.gpuKnown && !s.pending && (s.newer && s.age >= newcomerHold || s.age >= hold):
		return holdOver
	}
	return ""
}

// release closes the dead clients' files that are due. If host memory is short, it closes one client's files at a time,
// the longest dead first, because memory is freed only by the close.
func (g *Guard) release(now time.Time) {
	for len(g.closed) > 0 {
		g.files -= <-g.closed
		g.changed = true
	}
	g.readUsage(now)
	g.wantUsage(now)
	if len(g.dead) == 0 {
		return
	}
	g.lastDead = now
	checks := !now.Before(g.nextCheck)
	if checks {
		g.nextCheck = now.Add(heldCheck)
		clear(g.kernel.memories)
	}
	shortened := false
	for _, c := range slices.Clone(g.dead) {
		s := g.situation(c, now)
		s.hostShort = checks && !shortened && s.neighbours && s.age >= minHold && g.hostShort(c, s.newer)
		if reason := s.releaseReason(g.Hold); reason != "" {
			shortened = shortened || reason == hostMemory || reason == gpuMemory
			g.releaseClient(c, reason)
		}
	}
}

// situation collects what the guard knows about a dead client. It reads nothing.
func (g *Guard) situation(c *client, now time.Time) situation {
	s := situation{age: now.Sub(c.died), pending: g.usage.pending(now)}
	for _, other := range g.living {
		if !other.inherits() && shareGPU(c, other) {
			s.neighbours = true
			s.newer = s.newer || other.opened.After(c.died.Add(-noticing))
		}
	}
	s.full = s.newer && g.places(c) > g.Clients-sparePlaces
	g.usage.about(c, &s, now)
	return s
}

// places counts the processes, living and dead, that a client's GPUs serve. A process that has closed some files, as
// PyTorch does while it starts, is in both lists and counts once (measured).
func (g *Guard) places(c *client) int {
	all := map[site.Process]bool{}
	for _, other := range g.living {
		if other.takesPlace() && shareGPU(c, other) {
			all[other.proc] = true
		}
	}
	for _, other := range g.dead {
		if other.takesPlace() && shareGPU(c, other) {
			all[other.proc] = true
		}
	}
	return len(all)
}

// takesPlace reports whether a client takes one of the places of its GPU. A process that has opened only the memory
// device takes none, because cuInit opens the GPUs 2 ms later (measured). Otherwise a user's process could shorten a
// dead client's time by opening the memory device only.
func (c *client) takesPlace() bool { return !c.inherits() && c.gpus != 0 }

// noticing is the maximum delay with which a death is noticed on a loaded node.
const noticing = time.Second

// shareGPU reports whether two clients may use the same GPU. A client with unknown GPUs may use any.
func shareGPU(a, b *client) bool { return a.gpus == 0 || b.gpus == 0 || a.gpus&b.gpus != 0 }

// releaseClient closes a dead client's files.
func (g *Guard) releaseClient(c *client, reason string) {
	g.dead = slices.DeleteFunc(g.dead, func(other *client) bool { return other == c })
	g.tellReleased(c, reason)
	g.close(c)
	g.state.Released[reason]++
	g.changed = true
	if reason != atEnd {
		g.often().Info().Int("pid", c.proc.PID).Str("reason", reason).Dur("held_ms", time.Since(c.died)).Msg("let go of a dead client's files")
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
	go func() {
		for _, fd := range slices.Concat(memory, control) {
			_ = unix.Close(fd)
		}
		g.closed <- len(memory) + len(control)
		g.events.nudge()
	}()
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
	g.takers.abandon()
	for _, c := range slices.Clone(g.dead) {
		g.releaseClient(c, atEnd)
	}
	for pid, c := range g.living {
		delete(g.living, pid)
		unix.Close(c.pidfd)
		g.close(c)
	}
	deadline := time.After(endWait)
	for g.files > 0 {
		select {
		case n := <-g.closed:
			g.files -= n
		case <-deadline:
			g.Log.Warn().Int("files", g.files).Msg("the driver does not close all files")
			return
		}
	}
}
