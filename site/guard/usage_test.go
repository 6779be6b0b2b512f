// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"testing"
	"time"
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
		u := usages{gauge: &gauge{}}
		for _, s := range c.samples {
			u.take([]Usage{{Known: true, TotalMiB: 1000, FreeMiB: 900, Samples: []Sample{{uint64(s[0]) * 1000, s[1]}}}}, now)
		}
		s := situation{neighbours: c.neighbours}
		u.about(&client{died: died, gpus: 1}, &s, now)
		if s.idle != c.want {
			t.Errorf("%s: idle %v", c.name, s.idle)
		}
	}
}

// A GPU is short of memory if its largest client would not fit a second time, or if less than an eighth is left.
func TestShortOfGPUMemory(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		free, largest int
		want          bool
	}{{900, 100, false}, {90, 100, true}, {126, 1, false}, {124, 1, true}, {500, 600, true}} {
		u := usages{gauge: &gauge{}}
		u.take([]Usage{{Known: true, TotalMiB: 1000, FreeMiB: c.free, LargestMiB: c.largest}, {Known: true, TotalMiB: 1000, FreeMiB: 1000}}, now)
		var s situation
		u.about(&client{died: now, gpus: 1}, &s, now)
		if s.gpuShort != c.want || !s.gpuKnown {
			t.Errorf("%+v: %+v", c, s)
		}
		s = situation{}
		if u.about(&client{died: now, gpus: 2}, &s, now); s.gpuShort {
			t.Errorf("%+v: the other GPU is short", c)
		}
		s = situation{}
		if u.about(&client{died: now, gpus: 1}, &s, now.Add(usageAge+1)); s.gpuKnown {
			t.Error("an old line counts")
		}
	}
}
