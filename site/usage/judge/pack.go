// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"

	"github.com/slurm-mps/slurm-mps/site/usage"
)

// Packing says how many ranks like a job's present ones fit on a GPU, and whether more ranks pay. docs/packing.md has
// the model and its reasons.
type Packing struct {
	Now   int `json:"now"`   // ranks a GPU at present: most clients at once on the busiest GPU; 0 not known
	Fits  int `json:"fits"`  // ranks a GPU that fit, by memory and by MPS's places; 0 not known
	Ranks int `json:"ranks"` // ranks a GPU that are advised; 0 if none is known to pay
	// Gain is the throughput with Ranks ranks a GPU by the present one's, and Low and High are its interval. 0 means not
	// known. If the GPU mostly waits, only Low is known.
	Gain float64 `json:"gain"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	Why  string  `json:"why"` // one sentence for people
}

// Packing returns how many ranks would fit and pay. Fits and Ranks are 0 if the report justifies no statement.
func (r Job) Packing() Packing {
	if !r.Whole() {
		return Packing{Why: "Figures of a part of a GPU do not show whether more ranks fit."}
	}
	p, most := Packing{}, usage.NoSample(r.Begin)
	var busiest usage.GPU
	for _, g := range r.GPUs {
		s, busy := g.Busy(r.Begin)
		if s.Clients == 0 {
			continue
		}
		if busy < adviceAfter {
			return Packing{Why: "The job used a GPU for less than a minute, which shows nothing."}
		}
		if n := fits(g, s); p.Fits == 0 || n < p.Fits {
			p.Fits = n
		}
		if load(s) > load(most) || busiest.UUID == "" {
			most, busiest = s, g
		}
	}
	p.Now = most.Clients
	load := max(most.SMActive, most.DRAM)
	switch {
	case busiest.UUID == "" || most.UsedMiB <= 0:
		return Packing{Why: "No figure of the GPUs is known."}
	case p.Fits <= p.Now:
		p.Why = fmt.Sprintf("%s of memory: no more ranks fit.", gibOf(most, busiest))
		return p
	case most.SMActive <= 0:
		p.Why = fmt.Sprintf("%s: %d ranks fit on a GPU; no figure shows whether they pay: try mps-tune.", gibOf(most, busiest), p.Fits)
		return p
	}
	p.Ranks = min(p.Fits, 4*p.Now, maxMeasured)
	p.Gain = min(float64(p.Ranks)/float64(p.Now), 100/load)
	p.Low, p.High = 0.8*p.Gain, 1.1*p.Gain
	p.Why = fmt.Sprintf("%s of the SMs, %s: %d ranks fit on a GPU; ", usage.Percent(most.SMActive), gibOf(most, busiest), p.Fits)
	if p.Low < 1.1 || p.Ranks <= p.Now {
		p.Ranks, p.Gain, p.Low, p.High = 0, 0, 0, 0
		p.Why += "more are not known to pay."
		return p
	}
	p.Why += fmt.Sprintf("%d ranks a GPU: %.1f times the throughput (%.1f to %.1f).", p.Ranks, p.Gain, p.Low, p.High)
	return p
}

// maxMeasured is the largest number of ranks a GPU that the model was measured with.
const maxMeasured = 8
