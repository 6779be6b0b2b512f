// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// machine is a guard's budget with a clock and a processor time of its own.
type machine struct {
	budget
	now         time.Time
	self, ended time.Duration
}

func newMachine(clients, gpus, guards int) *machine {
	m := &machine{now: time.Now()}
	m.budget = newBudget(Options{GuardSettings: lease.GuardSettings{Clients: clients}, Minors: make([]int, gpus)}, func() (total, children time.Duration) {
		return m.self + m.ended, m.ended
	})
	m.guards = guards
	return m
}

// turn is a turn that takes some processor time, and the rest after it.
func (m *machine) takes(took time.Duration, busy bool) (rest time.Duration) {
	m.self, m.busy = m.self+took, busy
	m.charge(m.now)
	rest = m.rest(m.now)
	m.now = m.now.Add(took + rest)
	return rest
}

// scans makes scans of a millisecond as often as the budget allows, for a time, and returns their number.
func (m *machine) scans(d time.Duration) (count int) {
	for end := m.now.Add(d); m.now.Before(end); count++ {
		m.now = m.now.Add(max(eventScan, m.scanned(time.Millisecond, m.now)))
	}
	return count
}

// Scans that find nothing take 2 % of a core after a burst, for all guards of a node together. What opens the device a
// few times a second, as a monitor does, never gets there.
func TestScansThatFindNothing(t *testing.T) {
	for guards := 1; guards <= 4; guards *= 2 {
		m := newMachine(48, 1, guards)
		m.scans(time.Minute)
		if count := m.scans(time.Minute); count > 60*1000/share/guards+1 {
			t.Errorf("%d guards: %d scans a minute", guards, count)
		}
		must.Hold(t, m.own.spent <= 0 && m.mayPause(m.now) && !m.calm(m.now).After(m.now),
			"what a stranger does delays the job's own")
	}
	monitor := newMachine(48, 1, 1)
	for second := range 60 {
		if count := monitor.scans(scanningFor); count < int(scanningFor/eventScan) {
			t.Fatalf("after %d s: %d scans", second, count)
		}
		monitor.now = monitor.now.Add(time.Second - scanningFor)
	}
}

// Where a client starts, scans are frequent: after a line of a daemon, a few times a second, and after a scan that has
// found something. That is so even if strangers have used up their account.
func TestScansAroundAStart(t *testing.T) {
	frequent := int(scanningFor / eventScan)
	m := newMachine(48, 1, 1)
	m.strangers = account{time.Minute, m.now}
	line := m.now
	must.Hold(t, m.allow(line) == line && m.scans(scanningFor) >= frequent, "a line does not make scans frequent")
	if m.scans(0); m.allow(line.Add(linesEvery-1)) != line.Add(linesEvery) || m.allow(line.Add(linesEvery-1)) != line.Add(linesEvery) {
		t.Error("a user's lines make scans frequent all the time, or a client's line is lost")
	}
	if m.now = line.Add(linesEvery); m.scans(scanningFor) < frequent {
		t.Error("a line that has waited does not make scans frequent")
	}
	if later := line.Add(3 * linesEvery); m.allow(later) != later {
		t.Error("a later line waits")
	}
	m = newMachine(48, 1, 1)
	m.strangers = account{time.Minute, m.now}
	if m.found(m.now); m.scans(scanningFor) < frequent {
		t.Error("scans after a start are not frequent")
	}
}

// An ordinary job never waits, also as one of 8 on a node: each client of a full node starts and ends, with 30 ms of
// processor time for both, once in five minutes. Between that, a dead client is held and its GPU is looked at.
func TestAnOrdinaryJobNeverWaits(t *testing.T) {
	for _, gpus := range []int{1, 16} {
		const clients, guards = 60, 8
		m := newMachine(clients, gpus, guards)
		for begin := range 3 {
			for client := range clients * gpus {
				if rest := m.takes(30*time.Millisecond, true); rest > 0 {
					t.Fatalf("%d GPUs, start %d of client %d: a rest of %v", gpus, begin, client, rest)
				}
			}
			for held := m.now; m.now.Sub(held) < 5*time.Minute*time.Duration(gpus); {
				if rest := m.takes(3*time.Millisecond, false); rest > 0 || !m.mayPause(m.now) {
					t.Fatalf("%d GPUs, %v after a death: a rest of %v, or no pause", gpus, m.now.Sub(held), rest)
				}
				m.now = m.now.Add(heldCheck)
			}
		}
	}
}

// What the job's user causes without end takes 2 % of a core after the reserve, for all guards of a node together:
// clients that start and end, pauses, and looks at held files, which never get rarer than one in maxRest.
func TestTheJobsOwnShare(t *testing.T) {
	for guards := 1; guards <= 4; guards *= 2 {
		limit := time.Minute / share / time.Duration(guards)
		of := func(what string, step func(m *machine)) {
			m := newMachine(48, 1, guards)
			for begin := m.now; m.now.Sub(begin) < time.Minute; {
				step(m)
			}
			before, begin := m.self+m.ended, m.now
			for m.now.Sub(begin) < time.Minute {
				step(m)
			}
			if used := m.self + m.ended - before; used > limit+limit/5 || used < limit/2 {
				t.Errorf("%d guards, %s: %v a minute, want %v", guards, what, used, limit)
			}
		}
		of("clients without end", func(m *machine) { m.takes(time.Millisecond, true) })
		of("held files", func(m *machine) {
			m.takes(time.Millisecond, false)
			m.now = earliest(latest(m.now.Add(heldCheck), m.calm(m.now)), m.now.Add(maxRest))
		})
		of("pauses", func(m *machine) {
			if m.takes(10*time.Microsecond, false); m.mayPause(m.now) {
				m.ended += 60 * time.Millisecond
			}
			m.now = m.now.Add(maxRest)
		})
		of("scans that find something", func(m *machine) {
			m.found(m.now)
			m.self += 5 * time.Millisecond
			m.measure()
			m.turn = 0
			m.now = m.now.Add(m.scanned(5*time.Millisecond, m.now))
		})
	}
}

// Held files are looked at all the same, before an answer about the GPU gets too old. So nothing is let go because its
// GPU is not known.
func TestNoRestIsLongerThanAnAnswerIsAwaited(t *testing.T) {
	m := newMachine(48, 1, 8)
	for range 1000 {
		if rest := m.takes(time.Second, true); rest > maxRest {
			t.Fatalf("a rest of %v", rest)
		}
	}
	must.Hold(t, 2*maxRest <= usageStart && 2*maxRest <= usageAge,
		"an answer that comes in a rest of %v is read too late", maxRest)
}

// What openings and lines cost is charged with the scan that follows, also the events that are read before it.
func TestOpeningsAreChargedWithTheirScan(t *testing.T) {
	m := newMachine(48, 1, 1)
	for begin := m.now; m.now.Sub(begin) < time.Minute; {
		m.opened = true
		m.takes(5*time.Millisecond, false)
		m.now = m.now.Add(m.scanned(time.Millisecond, m.now))
	}
	if limit := time.Minute/share + 2*burst; m.self > limit || m.own.spent > 0 {
		t.Errorf("%v a minute, want %v; %v are the job's own", m.self, limit, m.own.spent)
	}
}

// The time of a child counts while it runs and when it has ended, once.
func TestTheTimeOfChildren(t *testing.T) {
	m := newMachine(48, 1, 1)
	m.self = time.Second // with a child that runs
	m.charge(m.now)
	m.self, m.ended = 0, 0 // it has ended, and is not reaped
	m.charge(m.now)
	m.ended = time.Second
	before := m.own.spent
	if m.charge(m.now); m.own.spent != before {
		t.Errorf("%v more", m.own.spent-before)
	}
	if m.ended += time.Second; m.own.spent != before {
		t.Error("charged before the turn's end")
	}
	if m.charge(m.now); m.own.spent != before+time.Second {
		t.Errorf("%v for a child of a second", m.own.spent-before)
	}
}

// What the driver computes delays nothing of the guard: gpu-usage is asked every 100 ms for as long as a pause lasts, and
// the close of files costs the job's account nothing. gpu-usage alone is asked less often, down to once in maxRest, when
// it has used much. A dead client that is held for an hour takes it 4 % of a core.
func TestTheDriversTimeIsNotTheJobs(t *testing.T) {
	const question = 10 * time.Millisecond
	m := newMachine(48, 1, 1)
	var used time.Duration
	ask := func(d time.Duration) (count int) {
		for end := m.now.Add(d); m.now.Before(end); count++ {
			used += question
			m.now = m.now.Add(m.askEvery(used, m.now))
		}
		return count
	}
	for pause := range 10 {
		if asked := ask(5 * time.Second); asked < int(5*time.Second/usageEvery) {
			t.Fatalf("pause %d: %d questions", pause, asked)
		}
		m.now = m.now.Add(10 * time.Second)
	}
	ask(10 * time.Minute)
	if asked := ask(time.Minute); time.Duration(asked)*question > time.Minute/gaugeShare+question {
		t.Errorf("%d questions of %v a minute", asked, question)
	}
	must.Hold(t, m.own.spent <= 0 && m.strangers.spent <= 0 && m.mayPause(m.now), "the questions delay the guard")
}

// The time in which files are closed, and that of a gpu-usage that has ended, are not in the guard's account.
func TestProcessorTimeIsWithoutTheDrivers(t *testing.T) {
	g := &Guard{}
	before, childrenBefore := g.processorTime()
	g.closings.Add(int64(time.Hour))
	g.gauges.Add(int64(time.Minute))
	total, children := g.processorTime()
	if got := before - total; got > time.Hour+time.Minute || got < time.Hour {
		t.Errorf("%v less", got)
	}
	if childrenBefore-children != time.Minute || g.gaugeTime() != time.Minute {
		t.Errorf("children %v and %v, gpu-usage %v", childrenBefore, children, g.gaugeTime())
	}
}
