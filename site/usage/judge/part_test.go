// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"strings"
	"testing"
	"time"

	. "github.com/slurm-mps/slurm-mps/site/usage"

	"github.com/slurm-mps/slurm-mps/site/lease"
)

var quarter = lease.Part{Gres: lease.GresMPS, Units: 25, Count: 100}

func shards(n int) lease.Part { return lease.Part{Gres: lease.GresShard, Units: n, Count: 8} }

// busyHour is a job of an hour on one GPU. Its figures justify an advice.
func busyHour(part lease.Part, others int) Report {
	begin := time.Date(2026, 3, 12, 14, 0, 0, 0, time.UTC)
	at := begin.Add(time.Hour / 2)
	return Report{Begin: begin, End: begin.Add(time.Hour), Part: part, Totals: Totals{EnergyJ: 1000}, GPUs: []GPU{{
		UUID: "GPU-a", MemoryMiB: 80000, EnergyJ: 1000, Others: others,
		Samples: []Sample{{At: at, SMActive: 20, Clients: 1, UsedMiB: 10}},
	}}}
}

// A part counts as a part of the time, and has no advice. Four quarters are a GPU. Whole GPUs have both, if no other
// job was on them.
func TestFiguresOfParts(t *testing.T) {
	for name, c := range map[string]struct {
		part   lease.Part
		others int
		hours  float64
		memory string
		whole  bool
		text   string
	}{
		"whole":           {lease.Part{}, 0, 1, "0 of 78 GiB", true, ""},
		"a quarter":       {shards(2), 0, 0.25, "0 of 20 GiB", false, "The job had 2 of 8 shards of each GPU. GPU hours"},
		"percent":         {quarter, 3, 0.25, "0 of 20 GiB", false, "25 of 100 percent of each GPU, beside at most 3 other jobs. GPU"},
		"all shards":      {shards(9), 0, 1, "0 of 78 GiB", true, ""},
		"a whole, beside": {lease.Part{}, 1, 1, "0 of 78 GiB", false, "The job had whole GPUs, beside at most 1 other job. GPU"},
		"not known":       {shards(0), 0, 0, "0 of 78 GiB", false, "some of 8 shards of each GPU. GPU hours and energy are not known"},
	} {
		r := busyHour(c.part, c.others)
		j, memory := Job{r}, r.Text(All[3], r.GPUs[0], Sample{})
		hours, advice := j.GPUHours(r.End), j.advice()
		if hours != c.hours || memory != c.memory || r.Whole() != c.whole || (advice != "") != c.whole {
			t.Errorf("%s: %v GPU hours, %s, whole %t, advice %q", name, hours, memory, r.Whole(), advice)
		}
		if text := j.PartText(); (text == "") != c.whole || !strings.Contains(text, c.text) {
			t.Errorf("%s: %q, want %q", name, text, c.text)
		}
		if own := strings.Contains(r.Figures()[3].Means, "own clients"); own == c.whole {
			t.Errorf("%s: memory is %q", name, r.Figures()[3].Means)
		}
	}
}

// The energy after the last sample of a part is reckoned. That of whole GPUs stays.
func TestJoulesAfterTheLastSample(t *testing.T) {
	for part, want := range map[lease.Part]int{{}: 1000, quarter: 2000} {
		r := busyHour(part, 0)
		if r.ScaleEnergy(r.End); r.EnergyJ != want || r.GPUs[0].EnergyJ != want {
			t.Errorf("%v: %d J of %d J, want %d J", part, r.GPUs[0].EnergyJ, r.EnergyJ, want)
		}
	}
	r := busyHour(quarter, 0)
	r.GPUs[0].Samples = nil
	if r.ScaleEnergy(r.End); r.EnergyJ != 1000 {
		t.Errorf("%d J without a sample, want 1000 J", r.EnergyJ)
	}
}
