// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/site/usage"
)

// Sums are what jobs did not use of their GPUs: counts of jobs, GPU hours, and means. A mean is a sum of percent times
// hours, with the hours for which it is known beside it.
type Sums struct {
	Jobs       float64 `json:"jobs"`
	GPUHours   float64 `json:"gpu_hours"`
	NeverUsed  float64 `json:"never_used_hours"` // of GPUs on which the job never had a process
	NoProcess  float64 `json:"no_process_hours"` // of other GPUs, while the job had no process there
	SMActive   float64 `json:"sm_active"`
	SMActiveOf float64 `json:"sm_active_of"`
	DRAM       float64 `json:"dram"`
	DRAMOf     float64 `json:"dram_of"`
	Memory     float64 `json:"memory"` // the mean of the maxima
	MemoryOf   float64 `json:"memory_of"`
	MoreFit    float64 `json:"more_fit"`
	Pay        float64 `json:"pay"` // each job is in one of these three
	NoGain     float64 `json:"no_gain"`
	NotKnown   float64 `json:"not_known"`
	Win        float64 `json:"win_hours"`
	WinLow     float64 `json:"win_hours_low"`
	WinHigh    float64 `json:"win_hours_high"`
}

// Waste returns what a job did not use of its GPUs, from its report and those of its nodes. The lines are what to
// change in the job's script, with the GPU hours that each saves.
func (r Job) Waste(nodes []usage.Report) (sums Sums, lines map[string]float64) {
	sums, h := hours(nodes)
	lines = map[string]float64{}
	if line := r.lessLine(h, len(nodes)); line != "" && sums.NeverUsed > 0 {
		lines[line] = sums.NeverUsed
	}
	if line := r.addGain(&sums, h); line != "" {
		lines[line] = sums.Win
	}
	return sums, lines
}

// held is what a job used of its nodes and GPUs.
type held struct {
	gpus, nodes     int     // that it used
	maxUsed, maxAll int     // GPUs that it used of a node, and that it had there
	busiest         float64 // the highest percentage of a GPU
}

// hours adds up the hours of a job's GPUs.
func hours(nodes []usage.Report) (sums Sums, h held) {
	sums.Jobs = 1
	for _, node := range nodes {
		used, share := 0, Job{node}.GPUHours(node.End)/float64(max(len(node.GPUs), 1))
		for _, g := range node.GPUs {
			s, busy := g.Busy(node.Begin)
			if sums.addGPU(node, g, busy, share) {
				used++
			}
			h.busiest = max(h.busiest, s.SMActive, s.DRAM)
		}
		h.gpus, h.nodes = h.gpus+used, h.nodes+min(used, 1)
		h.maxUsed, h.maxAll = max(h.maxUsed, used), max(h.maxAll, len(node.GPUs))
	}
	return sums, h
}

// addGPU adds a GPU that its job had for some GPU hours, with a process on it for the time busy. It returns false if
// the job never used it.
func (s *Sums) addGPU(r usage.Report, g usage.GPU, busy time.Duration, hours float64) (used bool) {
	mean := g.Mean(r.Begin)
	s.GPUHours += hours
	used = len(g.Samples) == 0 || mean.Clients > 0 || mean.SMUtil >= idlePercent
	if used {
		idle := float64(mean.At.Sub(r.Begin)-busy) / float64(max(r.End.Sub(r.Begin), time.Second))
		s.NoProcess += hours * min(max(idle, 0), 1)
	} else {
		s.NeverUsed += hours
	}
	add := func(sum, of *float64, percent float64) {
		if r.Whole() && len(g.Samples) > 0 && percent >= 0 {
			*sum, *of = *sum+percent*hours, *of+hours
		}
	}
	add(&s.SMActive, &s.SMActiveOf, mean.SMActive)
	add(&s.DRAM, &s.DRAMOf, mean.DRAM)
	add(&s.Memory, &s.MemoryOf, min(100*mean.UsedMiB/float64(max(g.MemoryMiB, 1)), 100))
	return used
}

// lessLine returns the line with which the job asks for what it used, or "".
func (r Job) lessLine(h held, nodes int) string {
	switch {
	case r.End.Sub(r.Begin) < adviceAfter:
	case h.gpus == 0:
		return fmt.Sprintf("leave out #SBATCH --gres=%s:%d", cmp.Or(r.Part.Gres, "gpu"), cmp.Or(r.Part.Units, h.maxAll))
	case h.nodes < nodes:
		return fmt.Sprintf("#SBATCH --nodes=%d in place of %d", h.nodes, nodes)
	case h.maxUsed < h.maxAll && !r.Part.Shared():
		return fmt.Sprintf("#SBATCH --gres=gpu:%d in place of %d", h.maxUsed, h.maxAll)
	}
	return ""
}

// addGain adds what more ranks a GPU would gain, and returns the line that starts them, or "".
func (r Job) addGain(s *Sums, h held) string {
	p := r.Packing()
	if p.Fits > p.Now {
		s.MoreFit = 1
	}
	switch {
	case p.Ranks > 0:
	case p.Now > 0 && (p.Fits <= p.Now || h.busiest > fullPercent):
		s.NoGain = 1
		return ""
	default:
		s.NotKnown = 1
		return ""
	}
	s.Pay = 1
	saved := func(gain float64) float64 { return (s.GPUHours - s.NeverUsed - s.NoProcess) * (1 - 1/max(gain, 1)) }
	s.Win, s.WinLow, s.WinHigh = saved(cmp.Or(p.Gain, p.Low)), saved(p.Low), saved(cmp.Or(p.High, p.Low))
	mps := map[bool]string{true: "--constraint=mps "}[r.NoMPS]
	return fmt.Sprintf("#SBATCH %s--ntasks=%d, and srun mpirun-wrap ./app", mps, p.Ranks*h.gpus)
}
