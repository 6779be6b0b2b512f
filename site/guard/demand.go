// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"iter"
	"math/bits"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// growing is the time after its start in which a client takes its memory, and the time after a client's end in which
// its successor starts.
const growing = 10 * time.Second

// soonGrown is growing on a GPU of which only the sum of the clients' memory is known, and not whether a client has
// taken its memory. PyTorch takes 0.3 to 1.5 s.
const soonGrown = 2 * time.Second

// gpuCount is what the clients of one GPU add up to. A client with unknown GPUs counts on each.
//
// The counts are made once in a turn of the guard, and all decisions of the turn use them. So a turn's work grows with
// the number of clients, not with its square: a user can have 1,000 clients, and 400 of them dead.
type gpuCount struct {
	living      int       // clients that are not only forks
	newest      time.Time // when the last of them has opened its files
	places      int       // processes that the GPU serves, living and dead
	largest     int       // MiB of the job's largest process that the driver lists
	ownMiB      int       // of all of them
	nested      bool      // the driver may know a client of the job by another pid
	soon        int       // living clients younger than soonGrown
	growing     int       // living clients younger than growing
	growingMiB  int       // what these have
	dead        int
	inFlightMiB int // what the dead clients hold that may have work in flight, as far as the driver lists them
	unlisted    int // such clients of which the driver does not tell the memory
	lately      int // the maximum number of clients lately, as far as clients have ended since
}

// demand is the memory that the clients of one GPU have and may soon need, in MiB.
type demand struct {
	living, dead int  // clients
	largest      int  // the memory of the largest client, living or dead
	grow         int  // what the clients that have started lately may take until each is as large as the largest
	successors   int  // what clients need that may start soon: there were more clients a short time ago
	inFlight     int  // what the dead clients hold that may have work in flight
	own          int  // what the job's processes have, living and dead
	others       bool // programs of others have contexts on the GPU
}

// countClients counts the clients of each GPU.
func (g *Guard) countClients(now time.Time) {
	gpus := max(len(g.Minors), len(g.usage.gpus))
	g.counts = slices.Grow(g.counts[:0], gpus)[:gpus]
	clear(g.counts)
	for _, c := range g.living {
		if !c.inherits() {
			g.countLiving(c, now)
		}
	}
	g.findPlaces()
	for _, c := range g.dead {
		g.countDead(c, 1)
	}
	g.ends = slices.DeleteFunc(g.ends, func(e end) bool { return now.Sub(e.when) >= growing })
	for _, e := range g.ends {
		for i := range g.each(e.gpus) {
			g.counts[i].lately = max(g.counts[i].lately, e.clients)
		}
	}
	g.countMemory()
}

// countMemory finds the memory of the job's processes. The driver also lists those of other jobs. If it lists none of
// the job's and may know them by other pids, all count.
func (g *Guard) countMemory() {
	ours := map[int]bool{}
	for _, c := range g.dead {
		ours[c.proc.PID] = true
	}
	for c := range g.closing {
		ours[c.proc.PID] = true
	}
	for i, u := range g.usage.gpus {
		n, all := &g.counts[i], 0
		for pid, mib := range u.Clients {
			all = max(all, mib)
			if ours[pid] || g.living[pid] != nil {
				n.largest = max(n.largest, mib)
				n.ownMiB += mib
			}
		}
		if n.ownMiB == 0 && n.nested {
			n.largest = all
		}
	}
}

// findPlaces finds the places that dead clients take. A GPU serves g.Clients processes, and each process with open
// files takes a place, also a dead one. If no place is left, the next client gets an error (measured on an H200). A
// process that has closed some files, as PyTorch does while it starts, is living and dead, and counts once (measured).
func (g *Guard) findPlaces() {
	counted := make(map[proc.Process]uint64, len(g.dead))
	for _, c := range g.dead {
		if c.places = 0; !c.takesPlace() {
			continue
		}
		already := counted[c.proc]
		if living := g.living[c.proc.PID]; living != nil && living.proc == c.proc && living.takesPlace() {
			already |= living.gpus
		}
		c.places = c.gpus &^ already
		counted[c.proc] = already | c.gpus
	}
}

// takesPlace reports whether a client takes one of the places of its GPU. A process that has opened only the memory
// device takes none, because cuInit opens the GPUs 2 ms later (measured). Otherwise a user's process could shorten a
// dead client's time by opening the memory device only.
func (c *client) takesPlace() bool { return !c.inherits() && c.gpus != 0 }

// each returns the GPUs of a set, or all for a client with unknown GPUs.
func (g *Guard) each(gpus uint64) iter.Seq[int] {
	if gpus == 0 {
		gpus = 1<<len(g.counts) - 1
	}
	return func(yield func(int) bool) {
		for ; gpus != 0; gpus &= gpus - 1 {
			if i := bits.TrailingZeros64(gpus); i >= len(g.counts) || !yield(i) {
				return
			}
		}
	}
}

// usageOf returns what is known of a GPU's use.
func (g *Guard) usageOf(gpu int) (u gauge.Usage) {
	if gpu < len(g.usage.gpus) {
		u = g.usage.gpus[gpu]
	}
	return u
}

func (g *Guard) countLiving(c *client, now time.Time) {
	for i := range g.each(c.gpus) {
		n := &g.counts[i]
		n.living++
		n.nested = n.nested || c.namespaced
		if c.takesPlace() {
			n.places++
		}
		n.newest = latest(n.newest, c.opened)
		if now.Sub(c.opened) < soonGrown {
			n.soon++
		}
		if now.Sub(c.opened) < growing {
			n.growing++
			n.growingMiB += g.usageOf(i).Clients[c.proc.PID]
		}
	}
}

// countDead counts a dead client, or takes it out of the counts when its files are closed: times is 1 or -1.
func (g *Guard) countDead(c *client, times int) {
	for i := range g.each(c.gpus) {
		n := &g.counts[i]
		n.dead += times
		n.nested = n.nested || c.namespaced
		if c.places&(1<<i) != 0 {
			n.places += times
		}
		if c.inOrder {
			continue
		}
		usage := g.usageOf(i)
		mib, listed := usage.Clients[c.proc.PID]
		n.inFlightMiB += times * mib
		if !listed && (c.namespaced || usage.ContextsUnknown) {
			n.unlisted += times
		}
	}
}

// end is the end of a client: how many clients its GPUs had just before.
type end struct {
	when    time.Time
	gpus    uint64
	clients int
}

// maxEnds limits the ends that are remembered, because a user can start and end any number of clients.
const maxEnds = 1024

// noteEnd remembers the end of a client for the time in which a successor may start.
func (g *Guard) noteEnd(c *client, now time.Time) {
	if c.inherits() {
		return
	}
	if len(g.ends) >= maxEnds {
		g.ends = slices.Delete(g.ends, 0, 1)
	}
	g.ends = append(g.ends, end{now, c.gpus, 1 + g.neighboursOf(c)})
}

// demandOf returns the demand on a GPU.
func (g *Guard) demandOf(gpu int) demand {
	n, u := g.counts[gpu], g.usageOf(gpu)
	d := demand{living: n.living, dead: n.dead, largest: n.largest}
	if u.ContextsUnknown {
		// As if those that have just started had nothing yet.
		d.largest = (u.TotalMiB - u.FreeMiB) / max(1, n.living-n.soon+n.dead)
	}
	switch {
	case !u.ContextsUnknown:
		d.grow = n.growing*d.largest - n.growingMiB
	case n.soon > 0:
		d.grow = u.TotalMiB - u.FreeMiB // one client may have had all of it
	}
	d.inFlight = n.inFlightMiB + n.unlisted*d.largest
	d.successors = max(0, n.lately-n.living) * d.largest
	d.own, d.others = n.ownMiB, gpu < len(g.usage.shared) && g.usage.shared[gpu].others
	return d
}

// judge reports whether a GPU has plenty of memory: half of it is free, and it is enough if all clients get as large as
// the largest, and each dead one has a successor. It reports whether the GPU is short of memory: those that grow and
// those that may start do not fit, or less is free than a client that runs could get more without the dead.
//
// What others have is not the job's. Beside others the GPU is short only if the job's own clients that grow or start
// need what its dead clients hold, and one more can start with it.
func judge(u gauge.Usage, d demand) (roomy, short bool) {
	total, need := u.TotalMiB, d.grow+max(d.successors, d.inFlight)
	helps := true
	if d.others {
		total, need = u.FreeMiB+d.own, d.grow+d.successors
		helps = u.FreeMiB+d.inFlight >= d.largest
	}
	roomy = 2*u.FreeMiB >= total && (d.living+2*d.dead)*d.largest <= total
	return roomy, u.FreeMiB < need && helps
}
