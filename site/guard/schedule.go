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
}

// by makes the next scan no later than t, or than the end of the pause if that is later.
func (s *schedule) by(t time.Time) { s.next = earliest(s.next, latest(t, s.rested)) }

// end notes the end of a scan, after which the guard rests. Watched is whether events come from the kernel.
func (s *schedule) end(now time.Time, rest time.Duration, watched bool) {
	rest = max(eventScan, rest)
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

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
