// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// Why the files of a dead client were closed.
const (
	noNeighbour = lease.NoNeighbour
	workDone    = "work done"   // the GPUs were idle after its death
	holdOver    = "hold over"   // the policy's hold was over, and a newer client had come
	gpuMemory   = "gpu memory"  // a newer client may need the GPU's memory
	hostMemory  = "host memory" // the job's control group, or the node, ran short of memory
	noPlace     = "no place"    // the GPU serves no more clients, and the dead whose files are held count
	atBound     = "bound"       // room was made for the files of another client
	atEnd       = "end"         // the guard ended
)

const (
	// minHold is how long files are held even when memory is short: what most programs have in flight is over by then.
	minHold = 100 * time.Millisecond
	// newcomerHold is how long files are held beside a newer client when the GPU serves few more clients, and when nothing tells
	// how much memory it has left. A GPU makes four clients a second (measured on an H200), so that eight have come meanwhile.
	newcomerHold = 2 * time.Second
	// maxPlaces is how many clients of a GPU, dead ones among them, may have files open. A GPU serves 48, and the 49th gets an
	// error, whichever of them are dead (measured on an H200); so four of them are left for those that are not yet seen.
	maxPlaces = 44
	// endWait bounds the closing of all files at the end.
	endWait = 1500 * time.Millisecond
)

// situation is what counts for the files of one dead client.
type situation struct {
	age        time.Duration // since its death
	neighbours bool          // another client of its GPUs lives
	newer      bool          // one of them opened its files after this client's death
	pending    bool          // what the GPUs do will be known in a moment
	gpuKnown   bool          // what the GPUs have left and do is known
	gpuShort   bool          // they have too little left for one more client
	full       bool          // they serve few more clients, the dead among them
	idle       bool          // they have done nothing since its death
	hostShort  bool
}

// letGo is why the files are to be closed now, "" when they are to be held on. While neighbours live and no one needs the
// memory they are held for ever: a kernel that never ends kills the neighbours whenever its files go (measured).
func (s situation) letGo(hold time.Duration) string {
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

// release closes the files of the dead that are due. While memory is short it closes those of one client at a time, the one
// that died first, because the memory comes back only then.
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
		if reason := s.letGo(g.Hold); reason != "" {
			shortened = shortened || reason == hostMemory || reason == gpuMemory
			g.letGoOf(c, reason)
		}
	}
}

// situation is what is known of a dead client without asking anyone.
func (g *Guard) situation(c *client, now time.Time) situation {
	s := situation{age: now.Sub(c.died), pending: g.usage.pending(now), full: g.places(c) > maxPlaces}
	for _, other := range g.living {
		if !other.inherits() && shareGPU(c, other) {
			s.neighbours = true
			s.newer = s.newer || other.opened.After(c.died.Add(-noticing))
		}
	}
	g.usage.about(c, &s, now)
	return s
}

// places counts the processes, living and dead, that a client's GPUs serve. One that has closed files, as PyTorch does while it
// starts, is among the dead with those and among the living with the others (measured).
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

// takesPlace reports whether a client is one of those that its GPU serves. One that has opened the memory device alone is
// none yet: cuInit opens the GPUs 2 ms later (measured), and a user's process that does no more must not cost a dead client
// its time.
func (c *client) takesPlace() bool { return !c.inherits() && c.gpus != 0 }

// noticing is how much later than it died a death may be noticed on a loaded node.
const noticing = time.Second

// shareGPU reports whether two clients may use the same GPU. One whose GPUs are not known may use any.
func shareGPU(a, b *client) bool { return a.gpus == 0 || b.gpus == 0 || a.gpus&b.gpus != 0 }

// letGoOf closes a dead client's files.
func (g *Guard) letGoOf(c *client, reason string) {
	g.dead = slices.DeleteFunc(g.dead, func(other *client) bool { return other == c })
	g.close(c)
	g.state.Released[reason]++
	g.changed = true
	if reason != atEnd {
		g.often().Info().Int("pid", c.proc.PID).Str("reason", reason).Dur("held_ms", time.Since(c.died)).Msg("let go of a dead client's files")
	}
}

// close closes the files that no other client has, the memory files first, beside the loop.
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

// makeRoom lets go of the client that died first, if there is one.
func (g *Guard) makeRoom() bool {
	if len(g.dead) == 0 {
		return false
	}
	g.letGoOf(g.dead[0], atBound)
	return true
}

// releaseAll closes all files and waits until they are closed.
func (g *Guard) releaseAll() {
	g.takers.leave()
	for _, c := range slices.Clone(g.dead) {
		g.letGoOf(c, atEnd)
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
