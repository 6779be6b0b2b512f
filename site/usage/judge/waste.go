// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/site/usage"
)

// Waste returns what a job did not use of its GPUs, from its report and those of its nodes. The sums have the keys of
// mpsctl waste: counts of jobs, GPU hours, and means as sums of percent times hours, each beside its hours (dram_of).
// The lines are what to change in the job's script, with the GPU hours that each saves.
func (r Job) Waste(nodes []usage.Report) (sums, lines map[string]float64) {
	sums, lines = map[string]float64{"jobs": 1}, map[string]float64{}
	used, usedNodes, maxUsed, maxGPUs, busiest := 0, 0, 0, 0, 0.0
	for _, node := range nodes {
		onNode, share := 0, Job{node}.GPUHours(node.End)/float64(max(len(node.GPUs), 1))
		for _, g := range node.GPUs {
			s, busy := g.Busy(node.Begin)
			if addGPU(sums, node, g, busy, share) {
				onNode++
			}
			busiest = max(busiest, s.SMActive, s.DRAM)
		}
		used, usedNodes = used+onNode, usedNodes+min(onNode, 1)
		maxUsed, maxGPUs = max(maxUsed, onNode), max(maxGPUs, len(node.GPUs))
	}
	switch never := sums["never_used_hours"]; {
	case never == 0 || r.End.Sub(r.Begin) < adviceAfter:
	case used == 0:
		gres := fmt.Sprintf("%s:%d", cmp.Or(r.Part.Gres, "gpu"), cmp.Or(r.Part.Units, maxGPUs))
		lines["leave out #SBATCH --gres="+gres] = never
	case usedNodes < len(nodes):
		lines[fmt.Sprintf("#SBATCH --nodes=%d in place of %d", usedNodes, len(nodes))] = never
	case maxUsed < maxGPUs && !r.Part.Shared():
		lines[fmt.Sprintf("#SBATCH --gres=gpu:%d in place of %d", maxUsed, maxGPUs)] = never
	}
	p := r.Packing()
	if p.Fits > p.Now {
		sums["more_fit"] = 1
	}
	switch {
	case p.Ranks > 0:
		sums["pay"] = 1
		busy := sums["gpu_hours"] - sums["never_used_hours"] - sums["no_process_hours"]
		for key, gain := range map[string]float64{"": cmp.Or(p.Gain, p.Low), "_low": p.Low, "_high": cmp.Or(p.High, p.Low)} {
			sums["win_hours"+key] = busy * (1 - 1/max(gain, 1))
		}
		mps := map[bool]string{true: "--constraint=mps "}[r.NoMPS]
		lines[fmt.Sprintf("#SBATCH %s--ntasks=%d, and srun mpirun-wrap ./app", mps, p.Ranks*used)] = sums["win_hours"]
	case p.Now > 0 && (p.Fits <= p.Now || busiest > fullPercent):
		sums["no_gain"] = 1
	default:
		sums["not_known"] = 1
	}
	return sums, lines
}

// addGPU adds a GPU to sums of its job, which had it for some GPU hours, and a process on it for the time busy. It
// returns false if the job never used it.
func addGPU(sums map[string]float64, r usage.Report, g usage.GPU, busy time.Duration, hours float64) (used bool) {
	mean := g.Mean(r.Begin)
	sums["gpu_hours"] += hours
	used = len(g.Samples) == 0 || mean.Clients > 0 || mean.SMUtil >= idlePercent
	if used {
		idle := float64(mean.At.Sub(r.Begin)-busy) / float64(max(r.End.Sub(r.Begin), time.Second))
		sums["no_process_hours"] += hours * min(max(idle, 0), 1)
	} else {
		sums["never_used_hours"] += hours
	}
	memory := min(100*mean.UsedMiB/float64(max(g.MemoryMiB, 1)), 100)
	for key, percent := range map[string]float64{"sm_active": mean.SMActive, "dram": mean.DRAM, "memory": memory} {
		if r.Whole() && len(g.Samples) > 0 && percent >= 0 {
			sums[key] += percent * hours
			sums[key+"_of"] += hours
		}
	}
	return used
}
