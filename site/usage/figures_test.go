// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"testing"
	"time"
)

// A figure of any unit has its own text and scale everywhere: no output knows percentages or memory alone.
func TestAFigureOfAnotherUnit(t *testing.T) {
	f := All[0]
	f.text = func(v float64) string { return fmt.Sprintf("%.0f GB/s", v/1000) }
	f.full = func(Report, GPU) float64 { return 63_000 }
	r := Report{Begin: time.Unix(0, 0)}
	var g GPU
	for n, v := range []float64{10_000, 30_000} {
		s := NoSample(time.Unix(int64(n)+1, 0))
		*f.field(&s) = v
		g.Samples = append(g.Samples, s)
	}
	for maximum, want := range map[bool]string{false: "{63000 63 GB/s [mean 20 GB/s max 30 GB/s] 20 GB/s}", true: "{63000 63 GB/s [max 30 GB/s] 20 GB/s}"} {
		if f.Max = maximum; fmt.Sprint(r.Scale(f, g)) != want {
			t.Errorf("%v, want %s", r.Scale(f, g), want)
		}
	}
	if f.ofFull = true; r.Text(f, g, g.Samples[0]) != "10 of 63 GB/s" || f.TextOf(NoSample(r.Begin)) != "-" {
		t.Errorf("%s, %s", r.Text(f, g, g.Samples[0]), f.TextOf(NoSample(r.Begin)))
	}
}

// Each figure has all of its parts.
func TestEachFigureIsWhole(t *testing.T) {
	for _, f := range All {
		if scale := (Report{}).Scale(f, GPU{MemoryMiB: 2048, Samples: []Sample{{}}}); scale.Full <= 0 || scale.To == "" || len(scale.Values) == 0 {
			t.Errorf("%s: %+v", f.Key, scale)
		}
	}
}
