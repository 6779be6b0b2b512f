// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"math"
	"time"
)

// Unknown is a percentage that is not known.
const Unknown = -1

// NoSample returns a sample without a known percentage.
func NoSample(t time.Time) Sample {
	return Sample{At: t, SMUtil: Unknown, SMActive: Unknown, DRAM: Unknown}
}

// Add adds a sample to a GPU of a job that began at a time. If there are MaxSamples already, Add merges each two
// neighbours into one sample. Each later sample then covers twice the time.
func (g *GPU) Add(began time.Time, s Sample) {
	n := len(g.Samples)
	if n > 1 && g.covers(began, n-1) < time.Duration(g.Resolution)*time.Second*9/10 {
		last := g.Samples[n-1]
		both := sum{Sample: NoSample(s.At)}
		both.add(last, g.covers(began, n-1))
		both.add(s, s.At.Sub(last.At))
		g.Samples[n-1] = both.Sample
		return
	}
	if n >= MaxSamples {
		g.halve(began)
	}
	g.Samples = append(g.Samples, s.rounded())
}

// halve merges each two neighbours into one sample.
func (g *GPU) halve(began time.Time) {
	var half []Sample
	for i := 0; i < len(g.Samples); i += 2 {
		both := sum{Sample: NoSample(began)}
		for n := i; n < min(i+2, len(g.Samples)); n++ {
			both.add(g.Samples[n], g.covers(began, n))
		}
		half = append(half, both.Sample)
	}
	g.Samples, g.Resolution = half, 2*g.Resolution
}

// covers returns the time that a sample covers.
func (g *GPU) covers(began time.Time, n int) time.Duration {
	if n > 0 {
		began = g.Samples[n-1].At
	}
	return max(g.Samples[n].At.Sub(began), 0)
}

// Mean returns one sample for the whole time of a GPU, for a job that began at a time.
func (g GPU) Mean(began time.Time) Sample {
	all := sum{Sample: NoSample(began)}
	for i, s := range g.Samples {
		all.add(s, g.covers(began, i))
	}
	return all.Sample
}

// Mean returns the mean of the percentages of all GPUs. Memory and clients are the maximum of one GPU.
func (r Report) Mean() Sample {
	all := sum{Sample: NoSample(r.Begin)}
	for _, g := range r.GPUs {
		all.add(g.Mean(r.Begin), 1)
	}
	return all.Sample
}

// sum puts samples together as their figures say. Each sample has the weight of the time that it covers. An unknown
// value has none.
type sum struct {
	Sample
	weights []time.Duration // by figure
}

func (m *sum) add(s Sample, covers time.Duration) {
	if m.weights == nil {
		m.weights = make([]time.Duration, len(All))
	}
	for n, f := range All {
		mean, value := f.field(&m.Sample), f.Of(s)
		if f.Max || value < 0 {
			*mean = max(*mean, value)
			continue
		}
		m.weights[n] += covers
		switch {
		case *mean < 0:
			*mean = value
		case m.weights[n] > 0:
			*mean += (value - *mean) * float64(covers) / float64(m.weights[n])
		}
	}
	m.At, m.Clients = s.At, max(m.Clients, s.Clients)
}

// rounded keeps one decimal, so that a report is short.
func (s Sample) rounded() Sample {
	for _, f := range All {
		*f.field(&s) = math.Round(f.Of(s)*10) / 10
	}
	return s
}

// Busy returns the mean of the samples with clients, and the time that they cover.
func (g GPU) Busy(began time.Time) (Sample, time.Duration) {
	all, lasted := sum{Sample: NoSample(began)}, time.Duration(0)
	for i, s := range g.Samples {
		if s.Clients == 0 {
			continue
		}
		all.add(s, g.covers(began, i))
		lasted += g.covers(began, i)
	}
	return all.Sample, lasted
}
