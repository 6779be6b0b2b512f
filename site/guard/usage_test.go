// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
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
		u := usages{gauge: &gauge{}, asked: now}
		u.take([]Usage{{Known: true, TotalMiB: 1000, FreeMiB: 900}})
		for _, s := range c.samples {
			u.take([]Usage{{Known: true, TotalMiB: 1000, FreeMiB: 900, Samples: []Sample{{uint64(s[0]) * 1000, s[1]}}}})
		}
		s := situation{neighbours: c.neighbours}
		u.about(&client{died: died, gpus: 1}, &s, noDead, now)
		if s.idle != c.want {
			t.Errorf("%s: idle %v", c.name, s.idle)
		}
	}
}

func noDead(uint64) []*client { return nil }

// A GPU has plenty of room if half of its memory is free. It is short of memory if less is free than the dead clients
// hold that may have work in flight.
func TestShortOfGPUMemory(t *testing.T) {
	now := time.Now()
	dead := func(uint64) []*client {
		return []*client{{proc: site.Process{PID: 1}}, {proc: site.Process{PID: 2}}, {proc: site.Process{PID: 3}, inOrder: true}}
	}
	for _, c := range []struct {
		free         int
		clients      map[int]int
		roomy, short bool
	}{
		{900, map[int]int{1: 20, 2: 80}, true, false}, {500, nil, true, false}, {499, nil, false, false},
		{99, map[int]int{1: 20, 2: 80}, false, true}, {100, map[int]int{1: 20, 2: 80}, false, false},
		{99, map[int]int{1: 20, 2: 70, 3: 500, 4: 500}, false, false},
	} {
		u := usages{gauge: &gauge{}, asked: now}
		u.take([]Usage{{Known: true, TotalMiB: 1000, FreeMiB: c.free, Clients: c.clients}, {Known: true, TotalMiB: 1000, FreeMiB: 1000}})
		s := situation{roomy: true}
		u.about(&client{died: now, gpus: 1}, &s, dead, now)
		if s.roomy != c.roomy || s.short != c.short || !s.gpuKnown {
			t.Errorf("%+v: %+v", c, s)
		}
		s = situation{roomy: true}
		if u.about(&client{died: now, gpus: 2}, &s, noDead, now); s.short || !s.roomy {
			t.Errorf("%+v: the other GPU is short", c)
		}
		s = situation{roomy: true}
		if u.about(&client{died: now, gpus: 1}, &s, noDead, now.Add(usageAge+1)); s.gpuKnown || s.roomy {
			t.Error("an old line counts")
		}
		s = situation{roomy: true}
		if u.about(&client{died: now.Add(1), gpus: 1}, &s, noDead, now); s.gpuKnown || s.roomy {
			t.Error("a line from before the death counts")
		}
	}
}

// gpu-usage is asked at once after a death, every 100 ms, and again if no answer comes.
func TestWhenUsageIsAsked(t *testing.T) {
	reads, writes, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reads.Close()
	defer writes.Close()
	now := time.Now()
	u := usages{gauge: &gauge{ask: writes}}
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
