// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The samples of a GPU prove whether a client that died at second 10 has left work.
func TestIdle(t *testing.T) {
	died := time.UnixMicro(10_000_000)
	now := time.UnixMicro(12_000_000)
	for _, c := range []struct {
		name       string
		neighbours bool
		samples    [][2]int // milliseconds since 1970, percent
		want       bool
	}{
		{"no sample", true, nil, false},
		{"idle before its death", false, [][2]int{{9_800, 0}}, false},
		{"a sample that began before its death", false, [][2]int{{10_150, 0}}, false},
		{"idle ever since", false, [][2]int{{9_800, 0}, {10_000, 0}, {10_200, 0}, {10_400, 0}}, true},
		{"idle ever since, beside neighbours", true, [][2]int{{9_800, 0}, {10_000, 0}, {10_200, 0}, {10_400, 0}}, true},
		{"one sample", false, [][2]int{{10_200, 100}, {10_400, 0}}, true},
		{"one sample beside neighbours", true, [][2]int{{10_200, 100}, {10_400, 0}}, false},
		{"two samples beside neighbours", true, [][2]int{{10_200, 100}, {10_400, 0}, {10_600, 0}}, true},
		{"at work again", true, [][2]int{{10_400, 0}, {10_600, 0}, {10_800, 3}}, false},
	} {
		g := Guard{usage: usages{gauge: &gauge.Gauge{Child: &proc.Child{}}, asked: now}}
		u := &g.usage
		u.take([]gauge.Usage{{Known: true, TotalMiB: 1000, FreeMiB: 900}})
		for _, s := range c.samples {
			u.take([]gauge.Usage{{Known: true, TotalMiB: 1000, FreeMiB: 900, Samples: []gauge.Sample{{Micros: uint64(s[0]) * 1000, Percent: s[1]}}}})
		}
		s := situation{neighbours: c.neighbours}
		g.counted(now).addUsage(&client{died: died, gpus: 1}, &s, now)
		must.Equal(t, fmt.Sprintf("%s: idle", c.name), s.idle, c.want)
	}
}

// A line of gpu-usage that is not about all GPUs proves nothing.
func TestALineWithoutAllGPUs(t *testing.T) {
	for _, line := range []string{"[]", "null", `[{"known":true,"total_mib":1000,"free_mib":900}]`} {
		var usage []gauge.Usage
		must.OK(t, json.Unmarshal([]byte(line), &usage))
		now := time.Now()
		lines := make(chan []gauge.Usage, 1)
		g := Guard{Options: Options{Minors: []int{3, 5}}, usage: usages{gauge: &gauge.Gauge{Lines: lines}, asked: now}}
		lines <- usage
		g.readUsage(now)
		var s situation
		if g.counted(now).addUsage(&client{died: now.Add(-time.Second), gpus: 2}, &s, now); s.idle || s.gpuKnown {
			t.Errorf("%s: idle %v, known %v", line, s.idle, s.gpuKnown)
		}
	}
}

// A GPU has plenty of room if half of its memory is free and stays free when all clients grow. It is short of memory
// if less is free than the dead clients hold that may have work in flight, and than those need that have just started.
func TestShortOfGPUMemory(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name         string
		free         int
		clients      map[int]int // 1 is new, 2 is old, 3 was killed, 4 ended in order
		roomy, short bool
	}{
		{"small clients", 900, map[int]int{1: 20, 2: 20, 3: 20, 4: 20}, true, false},
		{"small clients, and half is free", 500, map[int]int{1: 20, 2: 20, 3: 20, 4: 20}, true, false},
		{"small clients, and less than half is free", 499, map[int]int{1: 20, 2: 20, 3: 20, 4: 20}, false, false},
		{"a successor of the largest does not fit beside all others", 600, map[int]int{1: 170, 2: 170, 3: 170, 4: 10}, false, false},
		{"less is free than was the killed client's", 99, map[int]int{1: 100, 2: 100, 3: 100, 4: 10}, false, true},
		{"as much is free as was the killed client's", 100, map[int]int{1: 100, 2: 100, 3: 100, 4: 10}, false, false},
		{"a new client is as large as the largest soon", 189, map[int]int{1: 10, 2: 10, 3: 100, 4: 10}, false, true},
		{"a new client can be as large as the largest", 190, map[int]int{1: 10, 2: 10, 3: 100, 4: 10}, false, false},
		{"what ended in order is not in flight", 10, map[int]int{1: 400, 2: 10, 3: 10, 4: 400}, false, false},
	} {
		g := Guard{
			living: map[int]*client{
				1: {proc: proc.Process{PID: 1}, gpus: 1, opened: now.Add(-time.Second)},
				2: {proc: proc.Process{PID: 2}, gpus: 1, opened: now.Add(-time.Minute)},
				5: {proc: proc.Process{PID: 5}, gpus: 2, opened: now.Add(-time.Second)},
			},
			dead:  []*client{{proc: proc.Process{PID: 3}, gpus: 1}, {proc: proc.Process{PID: 4}, gpus: 1, inOrder: true}},
			usage: usages{gauge: &gauge.Gauge{Child: &proc.Child{}}, asked: now},
		}
		for _, each := range g.living {
			each.files = []*file{{owner: each.proc}}
		}
		g.usage.take([]gauge.Usage{{Known: true, TotalMiB: 1000, FreeMiB: c.free, Clients: c.clients}, {Known: true, TotalMiB: 1000, FreeMiB: 1000}})
		on := func(gpus uint64, died, at time.Time) situation {
			s := situation{roomy: true}
			g.counted(at).addUsage(&client{died: died, gpus: gpus}, &s, at)
			return s
		}
		if s := on(1, now, now); s.roomy != c.roomy || s.short != c.short || !s.gpuKnown {
			t.Errorf("%s: %+v", c.name, s)
		}
		if s := on(2, now, now); s.short || !s.roomy {
			t.Errorf("%s: the other GPU: %+v", c.name, s)
		}
		if s := on(1, now, now.Add(usageAge+1)); s.gpuKnown || s.roomy {
			t.Errorf("%s: an old line counts", c.name)
		}
		if s := on(1, now.Add(1), now); s.gpuKnown || s.roomy {
			t.Errorf("%s: a line from before the death counts", c.name)
		}
	}
}

// gpu-usage is asked at once after a death, every 100 ms, and again if no answer comes.
func TestWhenUsageIsAsked(t *testing.T) {
	reads, writes, err := os.Pipe()
	must.OK(t, err)
	defer reads.Close()
	defer writes.Close()
	now := time.Now()
	u := usages{gauge: &gauge.Gauge{Child: &proc.Child{In: writes}}, every: usageEvery}
	death := now
	for i, c := range []struct {
		after  time.Duration
		answer bool
		died   bool
		want   bool
	}{
		{0, false, false, true}, {usageEvery, false, false, false}, {usageAge, false, false, true}, {usageAge, true, false, false},
		{usageAge + usageEvery - 1, false, false, false}, {usageAge + usageEvery, false, false, true},
		{usageAge + usageEvery + 1, true, false, false}, {usageAge + usageEvery + 2, false, true, true},
	} {
		if c.answer {
			u.take(nil)
		}
		at := now.Add(c.after)
		if c.died {
			death = at
		}
		before := u.asked
		if u.ask(death, at); (u.asked != before) != c.want {
			t.Errorf("%d: asked %v", i, !c.want)
		}
	}
}

// When the wall clock is set back, samples of 0 from before are later than each death, so they would prove an idle GPU.
// gpu-usage then reports one sample that is not 0, which may have an earlier time. The guard forgets the samples of 0.
//
// Contract: G2
func TestSamplesFromBeforeTheClockWasSetBack(t *testing.T) {
	const hour = 3_600_000_000
	var u usages
	u.take([]gauge.Usage{{Known: true, Samples: []gauge.Sample{{Micros: 2 * hour}, {Micros: 2*hour + 200_000}}}})
	if u.idle[0] != (span{2 * hour, 2*hour + 200_000}) {
		t.Fatalf("idle is %+v", u.idle[0])
	}
	u.take([]gauge.Usage{{Known: true, Samples: []gauge.Sample{{Micros: hour, Percent: 100}}}})
	must.Equal(t, "after the clock was set back, the GPU is idle in", u.idle[0], span{})
}
