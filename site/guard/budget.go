// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"time"

	"golang.org/x/sys/unix"
)

// budget limits the processor time of a guard and of its children. All guards of a node run before the jobs' processes,
// so all of them together may take a small part of a core for what users do, however many processes these start and
// end. What they do not take is saved, up to a burst and a reserve, so that an ordinary job never waits.
//
//	within burst             everything is done at once
//	beyond burst             what can wait is done less often: looks at held files, checks for MPS
//	beyond half of reserve   pauses begin later
//	beyond reserve           the guard rests between two turns, and deaths and new clients wait
//
// Who is not a client can only cause scans that find nothing, by opening the device. Such scans have an account of
// their own, so that a stranger does not delay the guard of another user.
type budget struct {
	own       account       // what the processes of the job's user cause
	strangers account       // scans that find nothing new
	driver    account       // gpu-usage
	reserve   time.Duration // of own
	guards    int           // of the node, at the last full scan
	free      time.Time     // scans before this time are own
	line      time.Time     // when the last line of a daemon has made scans own, or will
	used      func() (total, children time.Duration)

	total, children time.Duration // used at the last measurement
	gauge           time.Duration // used by gpu-usage at the last question
	turn, ended     time.Duration // of this turn, not charged yet; ended is the part of children that have ended
	opened          bool          // in this turn, a file was opened, or a line was written; its cost is that of a scan
	openings        time.Duration // the cost of such turns since the last scan
	busy            bool          // in this turn, a client has started or ended, or another goroutine has returned
}

// account is the processor time that is not earned yet.
type account struct {
	spent time.Duration
	asOf  time.Time
}

const (
	// share is the ratio of time to processor time of an account of all guards of a node: 2 % of a core each.
	share = 50
	// burst is the processor time that an account may have at once: some hundred scans.
	burst = 200 * time.Millisecond
	// reserveOf is the reserve for each client that the GPUs can serve. If each has eight processes of its own that load
	// data, and they start within half a minute, scans take half of that.
	reserveOf = 200 * time.Millisecond
	// gaugeShare is the ratio for gpu-usage, 4 % of a core, and gaugeBurst what it may use at once. A question takes the
	// driver 2 to 10 ms on a GPU, so gaugeBurst is enough for a hundred seconds of a dead client that is held.
	gaugeShare = 25
	gaugeBurst = 5 * time.Second
	// maxRest limits each rest in which the guard does not look at held files. It is less than usageStart and
	// usageAge, so no answer about a GPU gets too old, and nothing in flight is let go, because the guard rests.
	maxRest = 500 * time.Millisecond
	// linesEvery is the minimum time between two lines that make scans own, because the job's user can write lines.
	linesEvery = 250 * time.Millisecond
)

func newBudget(o Options, used func() (total, children time.Duration)) budget {
	b := budget{reserve: reserveOf * time.Duration(o.Clients*len(o.Minors)), used: used}
	b.measure()
	b.turn, b.ended = 0, 0
	return b
}

// measure adds what was used since the last call to this turn.
func (b *budget) measure() {
	total, children := b.used()
	took := max(0, total-b.total) // less for a moment, while a child that has ended is not reaped
	b.turn += took
	b.ended += min(took, max(0, children-b.children))
	b.total, b.children = max(b.total, total), max(b.children, children)
}

// ratio is the ratio of an account for this guard alone, from that of all guards of the node.
func (b *budget) ratio(all time.Duration) time.Duration { return all * time.Duration(max(1, b.guards)) }

// spend subtracts what an account has earned, and adds what was used since.
func (a *account) spend(used time.Duration, now time.Time, ratio time.Duration) {
	a.spent, a.asOf = max(0, a.spent-now.Sub(a.asOf)/ratio)+used, now
}

// found notes that a scan has found something new.
func (b *budget) found(now time.Time) { b.busy, b.free = true, now.Add(scanningFor) }

// allow makes scans own after a line in a daemon's log, which means that a client connects. It returns from when on: a
// line that comes soon after another one waits.
func (b *budget) allow(now time.Time) (from time.Time) {
	if !now.Before(b.line) {
		b.line = latest(now, b.line.Add(linesEvery))
		b.free = b.line.Add(scanningFor)
	}
	return b.line
}

// scanned charges a scan that took some processor time, and returns the minimum rest after it. Scans around the start
// of a client are the job's own.
func (b *budget) scanned(took time.Duration, now time.Time) time.Duration {
	took, b.openings = took+b.openings, 0
	a, limit := &b.strangers, burst
	if now.Before(b.free) {
		a, limit = &b.own, burst+b.reserve
	}
	ratio := b.ratio(share)
	a.spend(took, now, ratio)
	return max(restScans*took, min(took, a.spent-limit)*ratio)
}

// charge charges this turn. Turns in which nothing has happened do not use up the reserve: they only get rarer, down to
// one in maxRest. So a dead client that is held for hours delays nothing else.
func (b *budget) charge(now time.Time) {
	b.measure()
	b.own.spend(0, now, b.ratio(share))
	before, alone := b.own.spent, b.turn-b.ended
	if b.opened && !b.busy {
		b.openings, alone = b.openings+alone, 0
	}
	if b.own.spent += alone; !b.busy {
		b.own.spent = max(before, min(b.own.spent, burst+alone))
	}
	b.own.spent += b.ended
	b.turn, b.ended, b.busy, b.opened = 0, 0, false, false
}

// after returns when an account has earned all that is beyond a limit.
func (b *budget) after(limit time.Duration, now time.Time) time.Time {
	a, ratio := b.own, b.ratio(share)
	a.spend(0, now, ratio)
	return now.Add(max(0, a.spent-limit) * ratio)
}

// askEvery returns the minimum time between two questions to gpu-usage, which has used some processor time in all. A row
// of questions tells whose work the GPU does, and how long a pause lasts. So they have an account of their own.
func (b *budget) askEvery(used time.Duration, now time.Time) time.Duration {
	b.driver.spend(max(0, used-b.gauge), now, b.ratio(gaugeShare))
	b.gauge = max(b.gauge, used)
	if b.driver.spent > gaugeBurst {
		return maxRest
	}
	return usageEvery
}

// calm returns when the guard may do again what can wait.
func (b *budget) calm(now time.Time) time.Time { return b.after(burst, now) }

// mayPause reports whether a pause may begin.
func (b *budget) mayPause(now time.Time) bool { return !b.after(burst+b.reserve/2, now).After(now) }

// rest returns how long the guard rests before the next turn.
func (b *budget) rest(now time.Time) time.Duration {
	return min(maxRest, b.after(burst+b.reserve, now).Sub(now))
}

// processorTime returns the processor time of this process and its children, and that of the children that have ended.
// The recorder is not counted: it reads the GPUs at the intervals of the site. What the driver computes is not counted
// either. To close a client's files takes it 60 to 90 ms on an H100, and without a guard the client's own end takes that
// time. When both were charged, the sixth pause in 40 s came too late there.
func (g *Guard) processorTime() (total, children time.Duration) {
	children = computed(unix.RUSAGE_CHILDREN) - time.Duration(g.gauges.Load())
	total = computed(unix.RUSAGE_SELF) - time.Duration(g.closings.Load()) + children
	if pid := g.takers.PID(); pid != 0 {
		total += computedBy(pid)
	}
	return total, children
}

// gaugeTime returns the processor time of gpu-usage, of those that have ended too.
func (g *Guard) gaugeTime() time.Duration {
	used := time.Duration(g.gauges.Load())
	if u := g.usage.gauge; u != nil {
		used += computedBy(u.PID)
	}
	return used
}

// computed returns the processor time of this process, of this thread, or of the children that have ended.
func computed(who int) time.Duration {
	var used unix.Rusage
	if unix.Getrusage(who, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// computedBy returns the processor time of a child, or 0 after its end.
func computedBy(pid int) time.Duration {
	const ofProcess = 2 // CPUCLOCK_SCHED, without CPUCLOCK_PERTHREAD_MASK
	var used unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|ofProcess), &used) != nil {
		return 0
	}
	return time.Duration(used.Nano())
}
