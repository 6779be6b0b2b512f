// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/guard/pause"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// counting is a guard of two GPUs with random clients: living and dead, forks, with and without known GPUs, and with
// files that a living or dead process has closed before.
func counting(random *rand.Rand, now time.Time) *Guard {
	g := &Guard{Options: Options{GuardSettings: lease.GuardSettings{Clients: 48, Hold: lease.Duration(time.Minute)}, Minors: []int{0, 1}}, living: map[int]*client{}}
	usage := func() gauge.Usage {
		return gauge.Usage{Known: true, TotalMiB: 1000, FreeMiB: random.IntN(1000), Clients: map[int]int{}, ContextsUnknown: random.IntN(4) == 0}
	}
	g.usage.gauge, g.usage.asked = &gauge.Gauge{Child: &proc.Child{}}, now
	line := []gauge.Usage{usage(), usage()}
	for pid := 1; pid < 40; pid++ {
		c := clientOf(pid, uint64(random.IntN(4)))
		c.opened = now.Add(-time.Duration(random.IntN(int(2 * growing))))
		c.inOrder, c.namespaced = random.IntN(2) == 0, random.IntN(3) == 0
		if random.IntN(5) == 0 {
			c.files[0].owner = proc.Process{PID: 1, Start: 99} // a fork
		}
		for i := range line {
			if random.IntN(2) == 0 && !line[i].ContextsUnknown {
				line[i].Clients[pid] = random.IntN(50)
			}
		}
		switch random.IntN(3) {
		case 0:
			g.living[pid] = c
			continue
		case 1: // it has closed some files, and lives
			g.living[pid] = c
			c = clientOf(pid, c.gpus&1)
			c.lives = true
		}
		c.died = now.Add(-time.Duration(random.IntN(int(time.Minute))))
		g.dead = append(g.dead, c)
		g.ends = append(g.ends, end{now.Add(-time.Duration(random.IntN(int(growing)))), c.gpus, random.IntN(60)})
	}
	g.usage.take(line)
	return g
}

// plain counts the clients of a GPU in the plainest way.
func (g *Guard) plain(gpu int, now time.Time) (n gpuCount) {
	served := map[proc.Process]bool{}
	bit, u := uint64(1)<<gpu, g.usage.gpus[gpu]
	for _, c := range g.living {
		if c.inherits() || !c.mayUse(bit) {
			continue
		}
		if n.living++; c.opened.After(n.newest) {
			n.newest = c.opened
		}
		if c.gpus != 0 {
			served[c.proc] = true
		}
		if age := now.Sub(c.opened); age < growing {
			n.growing++
			n.growingMiB += u.Clients[c.proc.PID]
			if age < soonGrown {
				n.soon++
			}
		}
	}
	for _, c := range g.dead {
		if !c.mayUse(bit) {
			continue
		}
		n.dead++
		if c.gpus != 0 && !c.inherits() {
			served[c.proc] = true
		}
		mib, listed := u.Clients[c.proc.PID]
		if !c.inOrder {
			n.inFlightMiB += mib
			if !listed && (c.namespaced || u.ContextsUnknown) {
				n.unlisted++
			}
		}
	}
	n.places = len(served)
	for _, e := range g.ends {
		if e.gpus == 0 || e.gpus&bit != 0 {
			n.lately = max(n.lately, e.clients)
		}
	}
	memory := g.counts[gpu] // TestMemoryBesideOthers
	n.largest, n.ownMiB, n.nested = memory.largest, memory.ownMiB, memory.nested
	return n
}

// The counts of a turn are those of all pairs of clients, for clients with unknown GPUs too, and they stay so when a
// dead client's files are closed.
func TestTheCountsOfATurn(t *testing.T) {
	now := time.Now()
	random := rand.New(rand.NewPCG(1, 2))
	for trial := range 300 {
		g := counting(random, now).counted(now)
		for len(g.dead) > 0 {
			for gpu := range g.Minors {
				if got, want := g.counts[gpu], g.plain(gpu, now); got != want {
					t.Fatalf("trial %d, GPU %d, %d dead:\n%+v, want\n%+v", trial, gpu, len(g.dead), got, want)
				}
			}
			c := g.dead[len(g.dead)-1]
			s, neighbours, newer := g.situation(c, now), 0, false
			for _, other := range g.living {
				if !other.inherits() && shareGPU(c, other) {
					neighbours++
					newer = newer || other.opened.After(c.died)
				}
			}
			must.Have(t, s.neighbours == (neighbours > 0) && s.newer == newer,
				"trial %d: %+v: want %d neighbours, newer %v", trial, s, neighbours, newer)
			g.countDead(c, -1)
			g.dead = g.dead[:len(g.dead)-1]
		}
	}
}

// A turn counts each client, and not each pair of clients. With eight times as many clients its fastest run takes about
// eight times as long, and with all pairs it would take 64 times as long.
func TestATurnBeside1400Clients(t *testing.T) {
	few, many := fastestTurn(t, 125, 50), fastestTurn(t, 1000, 400)
	t.Log(few, many)
	must.Hold(t, many <= 24*few, "a turn takes %v, and %v with an eighth of the clients", many, few)
}

// fastestTurn returns the time of the fastest of some turns with so many clients.
func fastestTurn(t *testing.T, living, dead int) time.Duration {
	now := time.Now()
	g := &Guard{
		Options: Options{GuardSettings: lease.GuardSettings{Clients: 60, Hold: lease.Duration(time.Hour)}}, living: map[int]*client{}, kernel: &kernel{memories: map[string]*memory{}},
		pauses: pauses{now: &pausing{began: now, asked: map[int]bool{}, Pause: pause.New(maxPaused, nil)}},
	}
	for gpu := range 16 {
		g.Minors = append(g.Minors, gpu)
	}
	g.budget = newBudget(g.Options, func() (total, children time.Duration) { return 0, 0 })
	g.usage.gauge, g.usage.asked, g.Pause = &gauge.Gauge{Child: &proc.Child{}}, now, lease.Duration(time.Hour)
	g.usage.take(slices.Repeat([]gauge.Usage{{Known: true, TotalMiB: 100}}, len(g.Minors)))
	g.usage.answered = false
	for pid := range living + dead {
		c := clientOf(pid, 0xf<<(pid%13))
		if c.opened = now; pid < living {
			g.living[pid] = c
		} else {
			c.died, c.exit, c.neighbours = now.Add(-time.Second/2), exitStatus{9, true}, living-1
			g.dead = append(g.dead, c)
		}
	}
	g.rooms.next = make(chan lease.Room, 1)
	least := time.Hour
	for range 20 {
		began := time.Now()
		needing := g.release(now)
		g.pauseFor(needing, now)
		g.publishRoom()
		least = min(least, time.Since(began))
		if len(needing) != dead || len(g.dead) != dead {
			t.Fatalf("%d need a pause, %d dead", len(needing), len(g.dead))
		}
	}
	return least
}

// The memory of other jobs' programs is not the job's: they can neither make its GPU short, nor let it seem to have
// plenty of room. The job is short if its own clients that grow or start need what its dead clients hold.
func TestMemoryBesideOthers(t *testing.T) {
	const server, stranger, big = 50, 51, 52
	now := time.Now()
	for _, c := range []struct {
		name         string
		others       bool
		free         int
		clients      map[int]int // 1 is new, 2 is old, 3 was killed, 4 was killed and is being closed
		lately       int         // clients before the death, if a successor may start
		roomy, short bool
	}{
		{"the GPU is the job's", false, 400, map[int]int{1: 100, 2: 100, 3: 100}, 0, false, false},
		{"a stranger has much", true, 400, map[int]int{1: 100, 2: 100, 3: 100, big: 600}, 0, true, false},
		{"a stranger has much, and a client starts", true, 99, map[int]int{1: 1, 2: 100, 3: 100, big: 600}, 0, false, false},
		{"the same without room for it", true, 98, map[int]int{1: 1, 2: 100, 3: 100, big: 600}, 0, false, true},
		{"what is being closed is larger", true, 98, map[int]int{1: 1, 2: 100, 3: 100, 4: 150, big: 600}, 0, false, true},
		{"the dead one's memory is of no use", true, 10, map[int]int{1: 1, 2: 200, 3: 30, big: 600}, 0, false, false},
		{"a successor may start", true, 99, map[int]int{1: 100, 2: 100, 3: 100, big: 600}, 3, false, true},
		{"a successor has room", true, 100, map[int]int{1: 100, 2: 100, 3: 100, big: 600}, 3, false, false},
		{"a stranger has all, and no client needs more", true, 0, map[int]int{1: 100, 2: 100, 3: 100, big: 600}, 0, false, false},
		{"the same on a GPU of the job's own", false, 0, map[int]int{1: 100, 2: 100, 3: 100}, 0, false, true},
	} {
		g := &Guard{Options: Options{Minors: []int{0}}, dead: []*client{clientOf(3, 1)}}
		g.living = map[int]*client{1: clientOf(1, 1), 2: clientOf(2, 1)}
		g.usage = usages{gauge: &gauge.Gauge{Child: &proc.Child{}}, asked: now, ours: func(pid int) bool { return pid == server }}
		g.living[1].opened, g.living[2].opened, g.dead[0].died = now.Add(-time.Second), now.Add(-time.Minute), now
		g.closing = map[*client]time.Time{clientOf(4, 1): {}}
		if c.lately > 0 {
			g.ends = []end{{now, 1, c.lately}}
		}
		u := gauge.Usage{Known: true, TotalMiB: 1000, FreeMiB: c.free, Clients: c.clients, Processes: []int{server}}
		if c.others {
			u.Processes = append(u.Processes, stranger)
		}
		g.usage.take([]gauge.Usage{u})
		s := situation{roomy: true}
		g.counted(now).addUsage(g.dead[0], &s, now)
		if s.roomy != c.roomy || s.short != c.short || s.others != c.others {
			t.Errorf("%s: %+v %+v", c.name, s, g.demandOf(0))
		}
	}
}
