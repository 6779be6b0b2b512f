// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"math"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

var began = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// A report of ten days with a sample every 10 s has at most MaxSamples. The mean, the maximum and the order are kept.
func TestAReportIsBounded(t *testing.T) {
	g := GPU{Resolution: 10}
	sum, n := 0.0, 0
	for at := time.Second; at < 10*24*time.Hour; at += 10 * time.Second {
		s := Sample{At: began.Add(at), SMUtil: float64(n % 101), SMActive: Unknown, DRAM: 7, UsedMiB: float64(n % 5000), Clients: n % 9}
		sum, n = sum+s.SMUtil, n+1
		g.Add(began, s)
		must.Have(t, len(g.Samples) <= MaxSamples, "%d samples", len(g.Samples))
	}
	must.Hold(t, len(g.Samples) >= MaxSamples/3, "%d samples are few", len(g.Samples))
	mean := g.Mean(began)
	if want := sum / float64(n); math.Abs(mean.SMUtil-want) > 0.5 || mean.SMActive != Unknown || math.Abs(mean.DRAM-7) > 0.01 {
		t.Errorf("mean %+v, want %.2f", mean, want)
	}
	must.Hold(t, mean.UsedMiB == 4999 && mean.Clients == 8, "maximum %+v", mean)
	for i := 1; i < len(g.Samples); i++ {
		must.Have(t, g.Samples[i].At.After(g.Samples[i-1].At), "samples %d and %d are not in order", i-1, i)
	}
}

// Each sample has the weight of the time that it covers. An unknown value has no weight.
func TestMean(t *testing.T) {
	g := GPU{Resolution: 10}
	for _, s := range []Sample{
		{At: began.Add(time.Second), SMUtil: 100, SMActive: Unknown, DRAM: 1},
		{At: began.Add(11 * time.Second), SMUtil: 45, SMActive: 20, DRAM: 1},
	} {
		g.Add(began, s)
	}
	if m := g.Mean(began); m.SMUtil != 50 || m.SMActive != 20 || m.DRAM != 1 {
		t.Errorf("%+v", m)
	}
	r := Report{Begin: began, GPUs: []GPU{g, {Samples: []Sample{{At: began.Add(time.Second), SMUtil: 0, SMActive: 40, DRAM: Unknown}}}}}
	if m := r.Mean(); m.SMUtil != 25 || m.SMActive != 30 || m.DRAM != 1 {
		t.Errorf("of two GPUs: %+v", m)
	}
	gap := GPU{Samples: []Sample{{At: began.Add(time.Second), SMUtil: 100}, {At: began.Add(9 * time.Second), SMUtil: Unknown},
		{At: began.Add(10 * time.Second), SMUtil: 0}}}
	if m := gap.Mean(began); m.SMUtil != 50 {
		t.Errorf("with a gap of 8 s: %+v, want 50 %%", m)
	}
	if m := (Report{}).Mean(); m.SMUtil != Unknown {
		t.Errorf("of nothing: %+v", m)
	}
}
