// SPDX-License-Identifier: Apache-2.0

package guard

import "time"

// lookBudget limits the processor time of looks that find nothing new. Somebody who is no client may open the device
// 10,000 times a second. The guards of a node run before the jobs' processes, so all of them together take a small part
// of a core for that.
//
// Looks around the start of a client are not limited: those after a look that has found something, and those after a
// line of a daemon, which means that a client connects.
type lookBudget struct {
	spent time.Duration // processor time that is not earned yet
	as    time.Time     // of spent
	free  time.Time     // looks before this time cost nothing
	line  time.Time     // the last line that has made looks free
}

const (
	// lookBurst is the processor time of looks that find nothing before they are limited: some hundred looks.
	lookBurst = 300 * time.Millisecond
	// lookShare is the ratio of time to processor time at which all guards of a node then look: 4 % of a core.
	lookShare = 25
	// linesEvery is the minimum time between two lines that make looks free, because the job's user can write lines.
	linesEvery = 250 * time.Millisecond
)

// found notes that a look has found something new.
func (b *lookBudget) found(now time.Time) { b.free = now.Add(lookingFor) }

// allow makes looks free after a line in a daemon's log. It reports whether the line counts.
func (b *lookBudget) allow(now time.Time) bool {
	if now.Sub(b.line) < linesEvery {
		return false
	}
	b.line, b.free = now, now.Add(lookingFor)
	return true
}

// rest returns the minimum rest after a look that took some processor time, on a node with a number of guards.
func (b *lookBudget) rest(took time.Duration, guards int, now time.Time) time.Duration {
	ratio := lookShare * time.Duration(max(1, guards))
	b.spent, b.as = max(0, b.spent-now.Sub(b.as)/ratio), now
	if now.Before(b.free) {
		return restLooks * took
	}
	if b.spent += took; b.spent < lookBurst {
		return restLooks * took
	}
	return ratio * took
}
