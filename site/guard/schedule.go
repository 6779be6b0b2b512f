// SPDX-License-Identifier: Apache-2.0

package guard

import "time"

// schedule decides when the guard scans.
type schedule struct {
	next, nextFull time.Time
	ended          time.Time // the last scan's end
	until          time.Time // scans are frequent until this time
	rested         time.Time // the next scan is not before this time
	cut            bool      // the last scan ended early, because a client had died
	resume         int       // the process with which the next scan begins, 0 for the first
	ofNode         int       // guards of the node at the last full scan
	budget         scanBudget
}

// by makes the next scan no later than t, or than the end of the pause if that is later.
func (s *schedule) by(t time.Time) {
	if t.Before(s.rested) {
		t = s.rested
	}
	if t.Before(s.next) {
		s.next = t
	}
}

// end notes the end of a scan that took some processor time. Watched is whether events come from the kernel.
func (s *schedule) end(now time.Time, took time.Duration, watched bool) {
	rest := max(eventScan, s.budget.rest(took, s.ofNode, now))
	s.ended, s.rested = now, now.Add(rest)
	switch {
	case s.cut:
		s.rested, s.next = now, now
	case !watched:
		s.next = now.Add(max(unwatchedScan, rest))
	case now.Before(s.until):
		s.next = now.Add(rest)
	default:
		s.next = now.Add(max(rareScan, rest))
	}
}

// scanBudget limits the processor time of scans that find nothing new. Somebody who is not a client may open the device
// 10,000 times a second. The guards of a node run before the jobs' processes, so all of them together take a small part
// of a core for that.
//
// Scans around the start of a client are not limited: those after a scan that has found something, and those after a
// line of a daemon, which means that a client connects.
type scanBudget struct {
	spent time.Duration // processor time that is not earned yet
	asOf  time.Time     // of spent
	free  time.Time     // scans before this time cost nothing
	line  time.Time     // the last line that has made scans free
}

const (
	// scanBurst is the processor time of scans that find nothing before they are limited: some hundred scans.
	scanBurst = 300 * time.Millisecond
	// scanShare is the ratio of time to processor time at which all guards of a node then scan: 4 % of a core.
	scanShare = 25
	// linesEvery is the minimum time between two lines that make scans free, because the job's user can write lines.
	linesEvery = 250 * time.Millisecond
)

// found notes that a scan has found something new.
func (b *scanBudget) found(now time.Time) { b.free = now.Add(scanningFor) }

// allow makes scans free after a line in a daemon's log. It reports whether the line counts.
func (b *scanBudget) allow(now time.Time) bool {
	if now.Sub(b.line) < linesEvery {
		return false
	}
	b.line, b.free = now, now.Add(scanningFor)
	return true
}

// rest returns the minimum rest after a scan that took some processor time, on a node with a number of guards.
func (b *scanBudget) rest(took time.Duration, guards int, now time.Time) time.Duration {
	ratio := scanShare * time.Duration(max(1, guards))
	b.spent, b.asOf = max(0, b.spent-now.Sub(b.asOf)/ratio), now
	if now.Before(b.free) {
		return restScans * took
	}
	if b.spent += took; b.spent < scanBurst {
		return restScans * took
	}
	return ratio * took
}
