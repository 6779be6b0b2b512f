// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// These are the limits for an advice.
const (
	adviceAfter = time.Minute // a shorter time proves nothing about a job
	idlePercent = 1           // a GPU with less SM utilisation has done nothing
	fullPercent = 85          // a GPU with more is busy
	useMemory   = 0.9         // the part of the memory that the ranks may fill
)

// advice returns a sentence about how ranks were started, or about their number, or "" if nothing justifies one.
func (r Job) advice() string {
	_, why := r.advise()
	return cmp.Or(r.unplaced(), why)
}

// advise returns an advice without and with its reasons. Both are "" if the figures justify none.
func (r Job) advise() (short, why string) {
	if _, unused, long := r.used(); long && unused > 0 && r.Whole() {
		short = fmt.Sprintf("%d of %d GPUs had no work", unused, len(r.GPUs))
		return short, short + ": ask for fewer GPUs, or see where the ranks are (mpirun-wrap -v)."
	}
	if p := r.Packing(); p.Fits > 0 {
		return p.short, p.Why
	}
	return "", ""
}

// use is a GPU with its mean while clients ran.
type use struct {
	usage.GPU
	usage.Sample
}

// used returns the GPUs that clients used, and counts those that had no work. long is false if the job, or its use of
// one of them, was too short.
func (r Job) used() (used []use, unused int, long bool) {
	for _, g := range r.GPUs {
		s, busy := g.Busy(r.Begin)
		all := g.Mean(r.Begin)
		switch {
		case all.At.Sub(r.Begin) < adviceAfter || s.Clients > 0 && busy < adviceAfter:
			return nil, 0, false
		case s.Clients > 0:
			used = append(used, use{g, s})
		case all.SMUtil >= 0 && all.SMUtil < idlePercent:
			unused++
		}
	}
	return used, unused, true
}

// load returns the percentage that bounds the ranks of a GPU, or -1 if no figure is known. Only GPM measures it.
// Without GPM, it is the time with a kernel, which shows no bound.
func load(s usage.Sample) float64 {
	if s.SMActive < 0 {
		return s.SMUtil
	}
	return max(s.SMActive, s.DRAM)
}

// fits returns how many ranks like the present ones fit on a GPU, by its memory and by the places of MPS.
func (g use) fits() int {
	return min(maxRanks, max(g.Clients, int(useMemory*float64(g.MemoryMiB)*float64(g.Clients)/g.UsedMiB)))
}

// fit returns the figures of a GPU and how many ranks fit on it as text, as the begin of a sentence.
func (g use) fit(ranks int) string {
	text := "SM util " + usage.Percent(g.SMUtil)
	if g.SMActive >= 0 {
		text = usage.Percent(g.SMActive) + " of the SMs"
	}
	if g.SMActive >= 0 && g.DRAM > g.SMActive {
		text += fmt.Sprintf(", %s of the memory's bandwidth", usage.Percent(g.DRAM))
	}
	return fmt.Sprintf("%s, %s: %d ranks fit on a GPU", text, gibOf(g), ranks)
}

func gibOf(g use) string {
	return fmt.Sprintf("%d of %d GiB", (int(g.UsedMiB)+512)>>10, g.MemoryMiB>>10)
}

// unplaced returns a sentence about processes that MPS did not serve, or about ranks that no wrapper has placed, with
// what to write, or "". Under mpirun without it, TaskProlog gives each rank the share of a single one.
func (r Job) unplaced() string {
	const write = "start ranks by srun mpirun-wrap ./app or mpirun mpirun-wrap ./app."
	without := func(c usage.Client) bool { return !c.Outside }
	if n := max(r.OutsideSeen, len(slices.DeleteFunc(r.eachOnce(), without))); n > 0 {
		return fmt.Sprintf("%s did not use the job's MPS daemon: %s", words.Count(n, "process"), write)
	}
	rule, _ := policy.ParseShare(r.Share) // of an invalid one, no share is known
	for n, g := range r.GPUs {
		ranks := map[int]bool{}
		for _, c := range r.Clients {
			if c.GPU == n && c.Step == "batch" && c.Rank >= 0 && c.SMs == 0 {
				ranks[c.Rank] = true
			}
		}
		shares, err := policy.SplitSMs(policy.GPU{SMs: g.SMs, SMsPerTPC: 2}, rule, len(ranks), policy.PercentFrom(100))
		if err == nil && shares[0].SMs < g.SMs {
			return fmt.Sprintf("%d ranks of the batch script had all of %s each. If you did not choose that, %s", len(ranks),
				r.GPUName(n), write)
		}
	}
	return ""
}
