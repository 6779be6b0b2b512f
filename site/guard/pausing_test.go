// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/pause"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// inPause is a guard with a pause of its neighbours 1 and 2, which no process runs. Neighbour 3 is on another GPU,
// and 4 is a fork of neighbour 1.
func inPause(began time.Time) (*Guard, *pausing, *client) {
	g := &Guard{
		Options: Options{GuardSettings: lease.GuardSettings{Pause: lease.Duration(6 * time.Second)}},
		living:  map[int]*client{}, closing: map[*client]time.Time{}, reporting: reporting{logged: map[string]bool{}},
	}
	g.budget = newBudget(g.Options, func() (total, children time.Duration) { return 0, 0 })
	for pid, gpus := range map[int]uint64{1: 1, 2: 1, 3: 2} {
		is := proc.Process{PID: pid, Start: 1}
		g.living[pid] = &client{proc: is, gpus: gpus, files: []*file{{owner: is}}}
	}
	g.living[4] = &client{proc: proc.Process{PID: 4}, gpus: 1, files: []*file{{owner: g.living[1].proc}}}
	g.pauses.now = &pausing{
		Pause: pause.New(maxPaused, nil), began: began, asked: map[int]bool{},
	}
	return g, g.pauses.now, &client{gpus: 1}
}

// ended reports whether the neighbours of a pause continue.
func (p *pausing) ended() bool {
	select {
	case <-p.Over:
		return true
	default:
		return false
	}
}

// A pause stops the neighbours on the dead client's GPU, each once, and those that come during the pause.
//
// Contract: G2
func TestWhoIsPaused(t *testing.T) {
	now := time.Now()
	g, p, dead := inPause(now)
	g.pauseFor([]*client{dead}, now)
	if len(p.Targets) != 2 || !p.asked[1] || !p.asked[2] || len(p.asked) != 2 {
		t.Fatalf("paused: %v", p.asked)
	}
	late := proc.Process{PID: 9, Start: 1}
	g.living[9] = &client{proc: late, gpus: 1, files: []*file{{owner: late}}}
	g.pauseFor([]*client{dead}, now.Add(time.Second))
	g.pauseFor([]*client{dead}, now.Add(time.Second))
	if len(p.Targets) != 3 || !p.asked[9] {
		t.Errorf("with a client that came during the pause: %v", p.asked)
	}
	must.Hold(t, !p.ended(), "the pause has ended")
}

// A pause ends when no client needs it and all files are closed, when its time is over, and when a neighbour cannot be
// paused. If the GPU did not get idle, the next pause comes after a rest of the same length.
func TestTheEndOfAPause(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name    string
		needing bool
		closing bool
		fails   bool
		after   time.Duration
		ends    bool
		idle    bool
		rest    time.Duration
	}{
		{"it is needed", true, false, false, 6*time.Second - 1, false, false, 0},
		{"its time is over", true, false, false, 6 * time.Second, true, false, 6 * time.Second},
		{"the files are being closed", false, true, false, time.Second, false, false, 0},
		{"the files do not close", false, true, false, 6 * time.Second, true, false, 6 * time.Second},
		{"the files are closed", false, false, false, time.Second, true, true, 0},
		{"a neighbour is traced", true, false, true, 10 * time.Millisecond, true, false, minRest},
	} {
		g, p, dead := inPause(now)
		var needing []*client
		if c.needing {
			needing = append(needing, dead)
		}
		if c.closing {
			g.closing[dead] = time.Time{}
		}
		if c.fails {
			p.Answers <- errors.New("a debugger traces it")
		}
		at := now.Add(c.after)
		g.pauseFor(needing, at)
		if p.ended() != c.ends || (g.pauses.now == nil) != c.ends {
			t.Errorf("%s: ended %v", c.name, p.ended())
		}
		if !c.ends {
			continue
		}
		if g.state.Pauses != 1 || g.state.PausedMillis != c.after.Milliseconds() {
			t.Errorf("%s: %+v", c.name, g.state)
		}
		must.Equal(t, fmt.Sprintf("%s: failed at %v", c.name, g.pauses.failed), c.idle, g.pauses.failed.IsZero())
		if rest := g.pauses.next.Sub(at); !c.idle && rest != c.rest {
			t.Errorf("%s: a rest of %v, want %v", c.name, rest, c.rest)
		}
	}
}

// Beside others at work, a pause ends as soon as it can prove nothing any more, and the next one comes after hold. It
// is no reason to let work in flight go when the others leave. While some client can be helped, the pause goes on.
//
// Contract: G2
func TestAPauseThatCannotHelp(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name         string
		needing      bool
		vain, others bool
		after        time.Duration
		ends, failed bool
		rest         time.Duration
	}{
		{"it can help", true, false, true, time.Second, false, false, 0},
		{"it cannot", false, true, true, time.Second, true, false, minRest},
		{"it cannot help one of two", true, true, true, time.Second, false, false, 0},
		{"its time is over beside others", true, false, true, 6 * time.Second, true, false, 6 * time.Second},
		{"its time is over", true, false, false, 6 * time.Second, true, true, 6 * time.Second},
	} {
		g, p, dead := inPause(now)
		g.Hold, g.pauses.vain, g.pauses.others = lease.Duration(30*time.Second), c.vain, c.others
		var needing []*client
		if c.needing {
			needing = append(needing, dead)
		}
		at := now.Add(c.after)
		must.Equal(t, c.name, g.pauses.left(time.Duration(g.Pause), at), 6*time.Second-c.after)
		g.pauseFor(needing, at)
		if p.ended() != c.ends || g.pauses.failed.IsZero() == c.failed {
			t.Errorf("%s: ended %v, failed at %v", c.name, p.ended(), g.pauses.failed)
		}
		if rest := g.pauses.next.Sub(at); c.ends && rest != c.rest {
			t.Errorf("%s: a rest of %v, want %v", c.name, rest, c.rest)
		}
		if apart := g.pauses.apart.Sub(at); c.ends && c.others && apart != time.Duration(g.Hold) {
			t.Errorf("%s: beside others, the next pause comes after %v", c.name, apart)
		}
	}
	g, p, _ := inPause(now)
	g.Hold = lease.Duration(30 * time.Second)
	for i, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute} {
		g.pauses.now = &pausing{began: now, others: true, Pause: pause.New(1, nil)}
		if g.endPause(now, false); g.pauses.apart.Sub(now) != want {
			t.Errorf("the rest after failure %d is %v", i+1, g.pauses.apart.Sub(now))
		}
	}
	for after, want := range map[time.Duration]bool{ // the others are there until the first minute, and come back later
		minRest: false, 90*time.Second - 1: false, 90 * time.Second: true, 2 * time.Minute: true,
	} {
		if g.pauses.met = now.Add(time.Minute); g.mayPause(now.Add(after)) != want {
			t.Errorf("%v after a failure beside others: may pause: %v", after, !want)
		}
	}
	if g.pauses.met = now.Add(time.Hour); g.mayPause(now.Add(2*time.Minute-1)) || !g.mayPause(now.Add(2*time.Minute)) {
		t.Error("beside others, pauses do not get rare")
	}
	g.pauses.now = p
	if g.endPause(now, true); g.pauses.beside != 0 {
		t.Error("a pause that has helped does not count")
	}
}

// A pause waits a short time for the driver to free the memory, after the last files were let go. A neighbour that has
// stopped just then changes nothing.
func TestAPauseUntilMemoryIsFree(t *testing.T) {
	now := time.Now()
	g, p, dead := inPause(now)
	g.closing[dead] = time.Time{}
	p.Answers <- nil
	for _, c := range []struct {
		after   time.Duration
		needing []*client
		ends    bool
	}{
		{0, nil, false}, {freeWait - 1, nil, false}, {freeWait, []*client{dead}, false}, // another client needs it
		{2 * freeWait, nil, false}, {3*freeWait - 1, nil, false}, {3 * freeWait, nil, true},
	} {
		if g.pauseFor(c.needing, now.Add(c.after)); p.ended() != c.ends {
			t.Fatalf("after %v: ended %v", c.after, p.ended())
		}
	}
	must.Hold(t, g.pauses.failed.IsZero(), "the pause counts as one that did not help")
}

// No pause begins if the policy allows none, and none before the rest after the last one is over.
func TestWhenAPauseBegins(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name    string
		never   bool
		next    time.Duration
		needing int
		cost    time.Duration // of a pause that began a second ago and failed
		want    bool
	}{
		{"no client needs it", false, 0, 0, 0, false},
		{"one is needed", false, 0, 1, 0, true},
		{"the policy allows none", true, 0, 1, 0, false},
		{"the neighbours rest", false, 1, 1, 0, false},
		{"the rest is over", false, -1, 1, 0, true},
		{"the last one has cost little", false, 0, 1, time.Second / share, true},
		{"the last one has cost too much", false, 0, 1, time.Second/share + 1, false},
	} {
		r := stillGuard(t, time.Minute)
		r.pauses.never, r.pauses.next = c.never, now.Add(c.next)
		r.pauses.began, r.pauses.failed = now.Add(-time.Second), now.Add(-time.Millisecond)
		r.pauses.before = r.budget.children - c.cost
		r.pauseFor(slices.Repeat([]*client{{gpus: 1}}, c.needing), now)
		must.Equal(t, fmt.Sprintf("%s: pauses %v", c.name, !c.want), r.pauses.now != nil, c.want)
		r.endPause(now, false)
	}
}

// After hold, a client's files go if a pause that ended after hold did not help, or if the policy allows no pause.
func TestWhetherAPauseIsOver(t *testing.T) {
	hold := time.Now()
	for _, c := range []struct {
		name string
		p    pauses
		want bool
	}{
		{"none was", pauses{}, false},
		{"the policy allows none", pauses{never: true}, true},
		{"one failed before hold was over", pauses{failed: hold.Add(-1)}, false},
		{"one failed after hold", pauses{failed: hold.Add(1)}, true},
		{"one goes on", pauses{failed: hold.Add(1), now: &pausing{}}, false},
	} {
		must.Equal(t, c.name, c.p.over(hold), c.want)
	}
}

// A pause ends when its process has ended, whatever ended it. The next one comes after a rest.
func TestAPauseWhoseProcessIsKilled(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.Pause = lease.Duration(time.Minute) // much longer than this test waits
	neighbour := testproc.NewCounter(t)
	is := neighbour.Identity(t)
	r.living[is.PID] = &client{proc: is, gpus: 1, pidfd: -1, files: []*file{{fd: -1, users: 2, owner: is}}}
	needing := []*client{{gpus: 1}}
	r.pauseFor(needing, time.Now())
	p := r.pauses.now
	must.OK(t, <-p.Answers)
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", is.PID))
	_, rest, _ := strings.Cut(string(status), "\nTracerPid:")
	pauser := 0
	if _, err := fmt.Sscan(rest, &pauser); err != nil || pauser == 0 {
		t.Fatalf("the neighbour is traced by %d, %v", pauser, err)
	}
	_ = unix.Kill(pauser, unix.SIGKILL) // a thread's id names its process, too
	neighbour.Resumes(t, "after the death of the process that pauses")
	for began := time.Now(); r.pauses.now == p; time.Sleep(time.Millisecond) {
		if r.pauseFor(needing, time.Now()); time.Since(began) > soon {
			t.Fatal("the guard goes on with a pause whose process has ended")
		}
	}
	if rest := time.Until(r.pauses.next); rest <= 0 || rest > minRest+soon {
		t.Errorf("the next pause comes after %v", rest)
	}
}

// A guard that ends in mid-pause continues the neighbours.
func TestAGuardThatEndsDuringAPause(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.Pause = lease.Duration(time.Minute) // much longer than this test waits
	neighbour := testproc.NewCounter(t)
	is := neighbour.Identity(t)
	r.living[is.PID] = &client{proc: is, gpus: 1, pidfd: -1, files: []*file{{fd: -1, users: 2, owner: is}}}
	dead := &client{gpus: 1}
	r.pauseFor([]*client{dead}, time.Now())
	must.OK(t, <-r.pauses.now.Answers)
	must.Hold(t, !neighbour.Counts(), "a paused process counts")
	r.closing[dead] = time.Time{} // its memory is not free yet, so the last turn does not end the pause
	r.Stop()
	r.Run()
	neighbour.Resumes(t, "after the guard's end")
	must.Equal(t, "the guard has counted", r.state.Pauses, 1)
}

// The recorder learns of each pause, with the totals.
func TestTheRecorderLearnsOfPauses(t *testing.T) {
	now := time.Now()
	g, _, _ := inPause(now)
	g.state.Pauses, g.state.PausedMillis = 1, 300
	g.recorder = &recorder{events: make(chan usage.Event, 1)}
	g.endPause(now.Add(time.Second), true)
	if e := <-g.recorder.events; e.Pauses != 2 || e.PausedMillis != 1300 {
		t.Errorf("%+v", e)
	}
}

// A refusal ends the pause at once, also behind the answers of many neighbours.
func TestARefusalBehindManyAnswers(t *testing.T) {
	g := newTestGuard(t, time.Minute)
	g.still()
	p := &pausing{Pause: pause.New(maxPaused, func() {}), began: time.Now(), asked: map[int]bool{}}
	for range 60 {
		p.Answers <- nil
	}
	p.Answers <- errors.New("process 7 traces it")
	g.pauses.now = p
	if g.pauseFor([]*client{clientOf(1<<30, 1)}, time.Now()); g.pauses.now != nil {
		t.Error("the pause goes on")
	}
}
