// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"testing"
	"time"
)

// looks makes looks of a millisecond as often as the budget allows, for a time, and returns their number.
func (b *lookBudget) looks(from time.Time, d time.Duration, guards int) (count int) {
	for now := from; now.Sub(from) < d; count++ {
		now = now.Add(max(eventLook, b.rest(time.Millisecond, guards, now)))
	}
	return count
}

// Looks that find nothing take 4 % of a core after a burst, for all guards of a node together. What opens the device a
// few times a second, as a monitor does, never gets there.
func TestLooksThatFindNothing(t *testing.T) {
	now := time.Now()
	for guards := 1; guards <= 4; guards *= 2 {
		b := lookBudget{}
		b.looks(now, time.Minute, guards)
		if count := b.looks(now.Add(time.Minute), time.Minute, guards); count > 60*1000/lookShare/guards+1 {
			t.Errorf("%d guards: %d looks a minute", guards, count)
		}
	}
	monitor := lookBudget{}
	for second := range 60 {
		at := now.Add(time.Duration(second) * time.Second)
		if count := monitor.looks(at, lookingFor, 1); count < int(lookingFor/eventLook) {
			t.Fatalf("after %d s: %d looks", second, count)
		}
	}
}

// Where a client starts, looks are frequent: after a line of a daemon, a few times a second, and after a look that has
// found something.
func TestLooksAroundAStart(t *testing.T) {
	now := time.Now()
	b := lookBudget{spent: time.Minute, as: now}
	if !b.allow(now) || b.looks(now, lookingFor, 1) < int(lookingFor/eventLook) {
		t.Error("a line does not make looks frequent")
	}
	if b.allow(now.Add(linesEvery - 1)) {
		t.Error("a user's lines make looks frequent all the time")
	}
	if !b.allow(now.Add(linesEvery)) {
		t.Error("a later line does not count")
	}
	b = lookBudget{spent: time.Minute, as: now}
	if b.found(now); b.looks(now, lookingFor, 1) < int(lookingFor/eventLook) {
		t.Error("looks after a start are not frequent")
	}
}
