// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
)

const (
	// sampleTime is a little more than the time that a sample covers.
	sampleTime = 250 * time.Millisecond
	// sampleGap is a little less than the time between two samples. With neighbours, two samples of 0 prove that no
	// work is in flight. After the last client's end, one sample is enough.
	sampleGap = 150 * time.Millisecond
	// usageAge is the maximum age of usable output.
	usageAge = 2 * time.Second
	// usageStart is the time for the first line. NVML starts in 10 ms if a GPU is in use.
	usageStart = time.Second
	// usageStays is the time for which gpu-usage runs on after the end of the last client.
	usageStays = 5 * time.Second
	// usageEvery is half of the interval at which the driver takes samples (measured on an H200: 200 ms). Reading the
	// samples takes 2 ms.
	usageEvery = 100 * time.Millisecond
	// closingEvery is usageEvery after the close of a client's files, until the driver has freed its memory.
	closingEvery = 20 * time.Millisecond
)

// usages is the usage of the job's GPUs.
type usages struct {
	gauge    *gauge.Gauge
	starting bool
	started  time.Time     // when the last start began
	failed   time.Time     // when gpu-usage last failed
	lastUse  time.Time     // the last time with clients
	asked    time.Time     // when the guard last asked
	answered bool          // the last question has an answer
	every    time.Duration // the minimum time between two questions
	asOf     time.Time     // when the question of the last line was asked
	gpus     []gauge.Usage
	idle     []span   // for each GPU
	busy     []uint64 // for each GPU, the last sample that was not 0, in microseconds since 1970
	shared   []sharing
	ours     func(pid int) bool // whether a process is a server of the job
}

// span is the time from the first to the last of the latest samples that are all 0, in microseconds since 1970. It is
// zero if the latest sample is not 0.
type span struct{ first, last uint64 }

// wantUsage runs gpu-usage while there are clients, and usageStays longer. So the answer after a death comes at once.
// While dead clients' files are held, it asks for a line every 100 ms, less often if that has cost much.
func (g *Guard) wantUsage(now time.Time) {
	u := &g.usage
	wanted := len(g.living) > 0 || len(g.dead) > 0
	if wanted {
		u.lastUse = now
	}
	switch {
	case u.gauge == nil && !u.starting && wanted && len(g.Gauge) > 0 && now.Sub(u.failed) > rareScan:
		u.starting, u.started = true, now
		g.background(g.startGauge)
	case u.gauge != nil && !wanted && now.Sub(u.lastUse) > usageStays:
		u.gauge.Stop()
		u.gauge = nil
	}
	if u.gauge != nil && len(g.dead)+len(g.closing) > 0 {
		u.every = g.budget.askEvery(g.gaugeTime(), now)
		beside := slices.ContainsFunc(u.shared, func(s sharing) bool { return s.others })
		if g.pauses.now == nil && !beside && now.Before(g.budget.calm(now)) { // the driver keeps samples of the whole GPU
			u.every = maxRest
		}
		if len(g.closing) > 0 && u.every == usageEvery { // the neighbours may be paused until the memory is free
			u.every = closingEvery
		}
		u.ask(g.lastChange(), now)
	}
}

// lastChange returns the time of the last death or close.
func (g *Guard) lastChange() (last time.Time) {
	if len(g.dead) > 0 {
		last = g.dead[len(g.dead)-1].died
	}
	for _, closed := range g.closing {
		last = latest(last, closed)
	}
	return last
}

// lists reports whether the driver lists a context of a client on any GPU. A dead client is listed until its memory is
// free.
func (u *usages) lists(c *client) bool {
	return slices.ContainsFunc(u.gpus, func(gpu gauge.Usage) bool {
		_, listed := gpu.Clients[c.proc.PID]
		return listed || !gpu.Known || gpu.ContextsUnknown
	})
}

// ask asks gpu-usage for a line: at once after a death or a close, and after a time. A line that does not come is asked
// for again.
func (u *usages) ask(change, now time.Time) {
	age := now.Sub(u.asked)
	switch {
	case u.asked.IsZero():
	case !u.answered && age < usageAge:
		return
	case u.asked.After(change) && age < u.every:
		return
	}
	if _, err := u.gauge.In.Write([]byte{'\n'}); err == nil {
		u.asked, u.answered = now, false
	}
}

// startGauge starts gpu-usage, which takes time on a busy node.
func (g *Guard) startGauge() (note func(now time.Time)) {
	started, err := gauge.Start(g.Gauge, g.events.nudge)
	if err == nil {
		go func() {
			<-started.Ended
			g.gauges.Add(int64(started.Used))
		}()
	}
	return func(now time.Time) {
		u := &g.usage
		u.gauge, u.starting, u.asked, u.asOf = started, false, time.Time{}, time.Time{}
		if err != nil {
			u.failed = now
			g.warn("cannot tell how much memory the GPUs have left", err)
		}
	}
}

// readUsage takes the lines that gpu-usage has printed.
func (g *Guard) readUsage(now time.Time) {
	u := &g.usage
	for u.gauge != nil {
		select {
		case line, ok := <-u.gauge.Lines:
			if !ok {
				g.logOnce("gpu-usage has ended: how much memory the GPUs have left is not known", nil)
				u.gauge.In.Close()
				u.gauge, u.failed = nil, now
				return
			}
			if len(line) == len(g.Minors) { // what is not known of a GPU is never "idle"
				u.take(line)
			}
		default:
			return
		}
	}
}

func (u *usages) take(line []gauge.Usage) {
	u.answered, u.asOf, u.gpus = true, u.asked, line
	if len(u.idle) != len(line) {
		u.idle, u.busy, u.shared = make([]span, len(line)), make([]uint64, len(line)), make([]sharing, len(line))
	}
	for i, usage := range line {
		u.shared[i].take(usage, u.ours)
		for _, s := range usage.Samples {
			switch {
			case s.Percent > 0:
				u.idle[i], u.busy[i] = span{}, s.Micros
			case u.idle[i].first == 0:
				u.idle[i] = span{s.Micros, s.Micros}
			default:
				u.idle[i].last = s.Micros
			}
		}
	}
}

// workedAfter reports whether a dead client's GPUs had work of the job after its death, as far as that is known.
func (u *usages) workedAfter(c *client) bool {
	for i, busy := range u.busy {
		if u.shared[i].others {
			busy = u.shared[i].worked
		}
		if c.gpus&(1<<i) != 0 && busy > uint64(c.died.Add(sampleTime).UnixMicro()) {
			return true
		}
	}
	return false
}

// pending reports whether gpu-usage will soon print a line about the time after a client's death.
func (u *usages) pending(c *client, now time.Time) bool {
	begin := latest(c.died, u.started)
	return (u.starting || u.gauge != nil && u.asOf.Before(c.died)) && now.Sub(begin) < usageStart
}

// addUsage adds the usage of a dead client's GPUs to a situation.
func (g *Guard) addUsage(c *client, s *situation, now time.Time) {
	u := &g.usage
	if u.gauge == nil || now.Sub(u.asOf) > usageAge || u.asOf.Before(c.died) {
		s.roomy = false
		return
	}
	s.gpuKnown, s.idle, s.noContext = true, true, !c.lives && !c.namespaced && !u.lists(c)
	for i, usage := range u.gpus {
		if !c.mayUse(1 << i) {
			continue
		}
		roomy, short := judge(usage, g.demandOf(i))
		// A driver that takes no samples never says that the GPU is idle.
		sampled := u.busy[i] != 0 || u.idle[i].last != 0 || now.Sub(c.died) < usageStart
		s.gpuKnown = s.gpuKnown && usage.Known && sampled
		s.roomy = s.roomy && usage.Known && roomy
		s.short = s.short || usage.Known && short
		// A sample covers the time before it, so the first sample that counts begins after the death.
		proof := max(uint64(c.died.Add(sampleTime).UnixMicro()), u.idle[i].first)
		if s.neighbours {
			proof += uint64(sampleGap.Microseconds())
		}
		shared := &u.shared[i]
		s.idle = s.idle && (u.idle[i].last >= proof || shared.proves(c.died))
		s.others = s.others || shared.others
		s.hopeless = s.hopeless || shared.hopeless(g.pauses.left(time.Duration(g.Pause), now), now)
	}
	s.idle = s.idle && s.gpuKnown
}
