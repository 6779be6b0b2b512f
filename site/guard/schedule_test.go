// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"testing"
	"time"
)

// scans makes scans of a millisecond as often as the budget allows, for a time, and returns their number.
func (b *scanBudget) scans(from time.Time, d time.Duration, guards int) (count int) {
	for now := from; now.Sub(from) < d; count++ {
		now = now.Add(max(eventScan, b.rest(time.Millisecond, guards, now)))
	}
	return count
}

// Scans that find nothing take 4 % of a core after a burst, for all guards of a node together. What opens the device a
// few times a second, as a monitor does, never gets there.
func TestScansThatFindNothing(t *testing.T) {
	now := time.Now()
	for guards := 1; guards <= 4; guards *= 2 {
		b := scanBudget{}
		b.scans(now, time.Minute, guards)
		if count := b.scans(now.Add(time.Minute), time.Minute, guards); count > 60*1000/scanShare/guards+1 {
			t.Errorf("%d guards: %d scans a minute", guards, count)
		}
	}
	monitor := scanBudget{}
	for second := range 60 {
		at := now.Add(time.Duration(second) * time.Second)
		if count := monitor.scans(at, scanningFor, 1); count < int(scanningFor/eventScan) {
			t.Fatalf("after %d s: %d scans", second, count)
		}
	}
}

// Where a client starts, scans are frequent: after a line of a daemon, a few times a second, and after a scan that has
// found something.
func TestScansAroundAStart(t *testing.T) {
	now := time.Now()
	b := scanBudget{spent: time.Minute, asOf: now}
	if !b.allow(now) || b.scans(now, scanningFor, 1) < int(scanningFor/eventScan) {
		t.Error("a line does not make scans frequent")
	}
	if b.allow(now.Add(linesEvery - 1)) {
		t.Error("a user's lines make scans frequent all the time")
	}
	if !b.allow(now.Add(linesEvery)) {
		t.Error("a later line does not count")
	}
	b = scanBudget{spent: time.Minute, asOf: now}
	if b.found(now); b.scans(now, scanningFor, 1) < int(scanningFor/eventScan) {
		t.Error("scans after a start are not frequent")
	}
}
