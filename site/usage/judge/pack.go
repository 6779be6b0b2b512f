// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"

	"github.com/slurm-mps/slurm-mps/site/usage"
)

// Packing says how many ranks like a job's present ones fit on a GPU, and whether more ranks pay. docs/packing.md has
// the model, its reasons, and what it was judged by.
type Packing struct {
	Now   int `json:"now"`   // ranks a GPU at present: the most at once on the busiest GPU; 0 not known
	Fits  int `json:"fits"`  // ranks a GPU that fit, by memory and by MPS's places; 0 not known
	Ranks int `json:"ranks"` // ranks a GPU that are advised; 0 if none is known to pay
	// Gain is the throughput with Ranks ranks a GPU by the present one's, and Low and High are its interval. 0 means
	// not known. Of ranks that wait for their processors, only Low is known.
	Gain float64 `json:"gain"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	Why  string  `json:"why"` // one sentence for people

	short string // a part of the verdict, or ""
}

// These are the model's parameters, and the limits of what was measured. TestLeaveOneOut fits keep and spread again.
const (
	keep   = 0.95 // the part of the queue's gain that ranks have; caches and clocks take the rest
	spread = 1.26 // the gain lies within the prediction by spread and times spread: two standard deviations

	ownDemand = 0.2  // a rank that needs less of a GPU's time waits for its processor, so only a lower bound is known
	waiting   = 0.65 // such ranks had more than this part of the prediction
	pays      = 1.1  // nothing is promised if the gain may be less
	doubling  = 1.2  // a further doubling of the ranks must gain as much at least, because it takes memory and cores

	maxRanks    = 48 // the places of MPS
	maxMeasured = 8
	maxUncapped = 4 // without a share, eight ranks got in each other's way
)

// Packing returns how many ranks would fit and pay. Fits and Ranks are 0 if the report justifies no statement.
func (r Job) Packing() Packing {
	if !r.Whole() {
		return Packing{Why: "The figures of a part of a GPU do not show whether more ranks fit."}
	}
	gpus, _, long := r.used()
	if !long {
		return Packing{Why: "The job used a GPU for less than a minute, which shows nothing."}
	}
	p, busiest := Packing{}, use{Sample: usage.NoSample(r.Begin)}
	for _, g := range gpus {
		if g.UsedMiB <= 0 || load(g.Sample) < 0 {
			return Packing{Why: "The use of the GPU is not known."}
		}
		if fits := g.fits(); p.Fits == 0 || fits < p.Fits {
			p.Fits = fits
		}
		if load(g.Sample) > load(busiest.Sample) {
			busiest = g
		}
	}
	if p.Fits == 0 {
		return Packing{Why: "No process was seen on a GPU."}
	}
	p.Now = busiest.Clients
	p.advise(busiest, r)
	return p
}

// advise completes a Packing with Now and Fits by the figures of the busiest GPU.
func (p *Packing) advise(g use, r Job) {
	measured := maxUncapped
	if r.Share == "overlap:2" {
		measured = maxMeasured
	}
	p.Why = g.fit(p.Fits)
	switch {
	case p.Now >= maxRanks:
		p.Why = fmt.Sprintf("%d ranks a GPU are as many as MPS serves.", p.Now)
	case p.Fits <= p.Now:
		p.short, p.Why = "no more ranks would fit", gibOf(g)+" of memory: no more ranks fit."
	case g.SMUtil >= 0 && g.SMUtil < idlePercent:
		p.short, p.Why = "the GPU had no work", p.Why+", but the present ones had no work."
	case g.SMActive < 0:
		p.Why += "; no figure of this GPU shows whether more pay: try mps-tune."
	case load(g.Sample) > fullPercent:
		p.short, p.Why = "the GPU was busy", p.Why+", and more are not known to pay."
	case r.NoMPS && p.Now > 1:
		p.Why += fmt.Sprintf("; the present %d take turns without MPS, so no figure shows whether more pay.", p.Now)
	case p.Now >= measured:
		p.Why += fmt.Sprintf("; more than %d with this share were not measured: try mps-tune.", measured)
	default:
		p.predict(demandOf(load(g.Sample), p.Now), measured)
	}
}

// predict adds the ranks that pay, at most a number of them, if each needs a GPU for a part of its time.
func (p *Packing) predict(demand float64, most int) {
	n, more := p.Now, 1.0
	for next := n; next < min(p.Fits, most); {
		next = min(2*next, p.Fits, most)
		g := gain(demand, p.Now, next)
		if g < doubling*more {
			break
		}
		n, more = next, g
	}
	low, high := more/spread, more*spread
	if demand < ownDemand {
		low = more * waiting
	}
	switch {
	case low < pays:
		p.Why += ", and more are not known to pay."
		return
	case demand < ownDemand:
		p.short = fmt.Sprintf("%d ranks a GPU would do at least %.1f times the work", n, low)
		p.Why += fmt.Sprintf("; %d ranks a GPU: at least %.1f times the present throughput, if each has a processor "+
			"core of its own, because the GPU waits for the processor: try mps-tune.", n, low)
		more, high = 0, 0
	default:
		p.short = fmt.Sprintf("%d ranks a GPU would do %.1f times the work", n, more)
		p.Why += fmt.Sprintf("; %d ranks a GPU: %.1f times the present throughput (%.1f to %.1f).", n, more, low, high)
	}
	p.Ranks, p.Gain, p.Low, p.High = n, more, low, high
}

// gain returns the throughput of n ranks by that of the present ones.
func gain(demand float64, now, n int) float64 {
	return 1 + keep*(queue(demand, n)/queue(demand, now)-1)
}

// queue returns the throughput of n ranks by that of a single one, which needs the GPU for a part of its time. Each
// rank waits for the kernels that it meets there: it is a closed queue of one server, by exact mean value analysis.
func queue(demand float64, n int) (rate float64) {
	waiting := 0.0
	for k := 1; k <= n; k++ {
		rate = float64(k) / (1 + demand*waiting)
		waiting = rate * demand * (1 + waiting)
	}
	return rate
}

// demandOf returns the part of its time for which each of n ranks needs the GPU, if they load it by a percentage.
func demandOf(percent float64, n int) float64 {
	low, high := 0.0, 1.0
	for range 30 {
		if middle := (low + high) / 2; middle*queue(middle, n) < percent/100 {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}
