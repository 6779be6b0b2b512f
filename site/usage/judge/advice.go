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
	roomPercent = 60          // a GPU with less in all known figures has room for more ranks
	fullPercent = 85          // a GPU with more in one of these figures has no room
	fullMemory  = 0.95
	useMemory   = 0.9 // the part of the memory that the ranks may fill
	maxRanks    = 48
)

// Advice returns a sentence about how ranks were started, or about their number, or "" if nothing justifies one.
func (r Job) Advice() string {
	_, why := r.advise()
	return cmp.Or(r.unplaced(), why)
}

// advise returns an advice without and with its reasons. Both are "" if the figures justify none. Those of a part of a
// GPU justify none, because no percentage is the job's own.
//
// The part of the SMs that had work shows whether there is room, and only GPM measures it. Without GPM, the time
// without any kernel shows room, but no figure shows that a GPU is full. Only a trial shows whether more ranks are
// faster.
func (r Job) advise() (short, why string) {
	if !r.Whole() {
		return "", ""
	}
	unused, room, most := 0, 0, usage.NoSample(r.Begin)
	var fullest usage.GPU
	for _, g := range r.GPUs {
		s, busy := g.Busy(r.Begin)
		switch {
		case busy < adviceAfter && g.Mean(r.Begin).Clients > 0 || g.Mean(r.Begin).At.Sub(r.Begin) < adviceAfter:
			return "", ""
		case s.Clients == 0:
			if all := g.Mean(r.Begin); all.SMUtil >= 0 && all.SMUtil < idlePercent {
				unused++
			}
			continue
		}
		if fits := fits(g, s); room == 0 || fits < room {
			room = fits
		}
		if load(s) > load(most) || fullest.UUID == "" {
			most, fullest = s, g
		}
	}
	switch {
	case unused > 0:
		short = fmt.Sprintf("%d of %d GPUs had no work", unused, len(r.GPUs))
		return short, short + ": ask for fewer GPUs, or see where the ranks are (mpirun-wrap -v)."
	case fullest.UUID == "":
		return "", ""
	case fullest.MemoryMiB > 0 && most.UsedMiB > fullMemory*float64(fullest.MemoryMiB):
		return "the memory was nearly full", fmt.Sprintf("The memory was nearly full, %s: more ranks would not fit.",
			gibOf(most, fullest))
	case most.SMActive > fullPercent || most.DRAM > fullPercent:
		return "the GPU was busy", fmt.Sprintf("While clients ran, %s: the GPU was busy, and more ranks would hardly help.",
			figures(most))
	case load(most) < 0 || load(most) >= roomPercent || room <= most.Clients:
		return "", ""
	}
	short = fmt.Sprintf("%d ranks a GPU would fit", room)
	return short, fmt.Sprintf("While clients ran, %s and memory %s: %s; try mps-tune.", figures(most),
		gibOf(most, fullest), short)
}

// load returns the larger of the figures that show whether there is room, or -1 if no figure is known. Without GPM,
// it is the time with a kernel.
func load(s usage.Sample) float64 {
	if s.SMActive < 0 {
		return s.SMUtil
	}
	return max(s.SMActive, s.DRAM)
}

// fits returns how many ranks like the present ranks fit on a GPU, by its memory and by its load.
func fits(g usage.GPU, s usage.Sample) int {
	fits := maxRanks
	if s.UsedMiB > 0 {
		fits = min(fits, int(useMemory*float64(g.MemoryMiB)*float64(s.Clients)/s.UsedMiB))
	}
	if load := load(s); load > 0 {
		fits = min(fits, int(100*float64(s.Clients)/load))
	}
	return fits
}

// figures returns the percentages for an advice as text.
func figures(s usage.Sample) string {
	switch {
	case s.SMActive < 0:
		return "SM util was " + usage.Percent(s.SMUtil)
	case s.DRAM > s.SMActive:
		return fmt.Sprintf("SM active was %s, DRAM %s", usage.Percent(s.SMActive), usage.Percent(s.DRAM))
	}
	return "SM active was " + usage.Percent(s.SMActive)
}

func gibOf(s usage.Sample, g usage.GPU) string {
	return fmt.Sprintf("%d of %d GiB", (int(s.UsedMiB)+512)>>10, g.MemoryMiB>>10)
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
