// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"testing"
	"time"
)

// A figure of any unit has its own text everywhere: no output knows percentages or memory alone.
func TestAFigureOfAnotherUnit(t *testing.T) {
	f := All[0]
	f.text = func(v float64) string { return fmt.Sprintf("%.0f GB/s", v/1000) }
	f.full = func(Report, GPU) float64 { return 63_000 }
	r := Report{Begin: time.Unix(0, 0)}
	s := NoSample(time.Unix(1, 0))
	*f.field(&s) = 10_000
	if r.Text(f, GPU{}, s) != "10 of 63 GB/s" || f.TextOf(NoSample(r.Begin)) != "-" {
		t.Errorf("%s, %s", r.Text(f, GPU{}, s), f.TextOf(NoSample(r.Begin)))
	}
}

// Each figure has all of its parts.
func TestEachFigureIsWhole(t *testing.T) {
	for _, f := range All {
		if f.Key == "" || f.Name == "" || f.Means == "" || f.text(1) == "" || f.full != nil && f.full(Report{}, GPU{MemoryMiB: 2048}) <= 0 {
			t.Errorf("%+v", f)
		}
	}
}
