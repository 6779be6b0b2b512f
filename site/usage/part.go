// SPDX-License-Identifier: Apache-2.0

// This file has what differs for a job that has a part of a GPU (docs/decisions/051).

package usage

import (
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/site/words"
)

// Whole reports whether the figures of the whole GPUs are the job's own. Otherwise the report has no percentages, and
// its memory is that of the job's own clients.
func (r Report) Whole() bool { return r.Part.Fraction() == 1 && r.others() == 0 }

// others returns how many other jobs had one of the GPUs at the same time.
func (r Report) others() (n int) {
	for _, g := range r.GPUs {
		n = max(n, g.Others)
	}
	return n
}

// memoryMiB returns the memory of a GPU that is the job's.
func (r Report) memoryMiB(g GPU) int {
	if part := r.Part.Fraction(); part > 0 {
		return int(part * float64(g.MemoryMiB))
	}
	return g.MemoryMiB
}

// PartText returns sentences about the job's part and what the report has of it, or "" if the figures are those of
// whole GPUs.
func (r Report) PartText() string {
	if r.Whole() {
		return ""
	}
	text := fmt.Sprintf("The job had %s of each GPU", r.Part)
	if !r.Part.Shared() {
		text = "The job had whole GPUs"
	}
	if n := r.others(); n > 0 {
		text += fmt.Sprintf(", beside at most %s", words.Count(n, "other job"))
	}
	if r.Part.Fraction() == 0 {
		return text + ". GPU hours and energy are not known, because no client is known to have shards."
	}
	return text + ". GPU hours and energy are by part. SM active, SM util and DRAM are left out, " +
		"because they are those of the whole GPU."
}

// ScaleEnergy adds the energy from the latest samples until a time, if the job has a part of a GPU, as if its power had
// been the same all the time. Nothing tells the recorder of a shared daemon that one of its jobs ends.
func (r *Report) ScaleEnergy(end time.Time) {
	if r.Whole() {
		return
	}
	r.EnergyJ = 0
	for n := range r.GPUs {
		g := &r.GPUs[n]
		if lasted := g.lasts(r.Begin); len(g.Samples) > 0 && lasted > 0 {
			g.EnergyJ = int(float64(g.EnergyJ)*float64(end.Sub(r.Begin))/float64(lasted) + 0.5)
		}
		r.EnergyJ += g.EnergyJ
	}
}
