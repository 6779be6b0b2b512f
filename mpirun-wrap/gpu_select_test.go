// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"slices"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

// A task that can open only its own GPU is on this GPU, whatever --gpu says.
func TestATaskThatIsConfinedToItsGPU(t *testing.T) {
	devices := ticketOf(4, policy.ScopeJob, 1).Devices
	for minor := range devices {
		devices[minor].Minor = minor
	}
	task := launch.Task{LocalRank: 0, LocalSize: 4, Source: launch.SourceStepd}
	for _, choice := range []choice{autoGPU, cyclicGPU, blockGPU} {
		for own := range devices {
			canOpen := func(minor int) bool { return minor == own }
			at := chooseGPU(devices, task, launch.Binding{}, choice, canOpen)
			if !slices.Equal(at.devices, []int{own}) {
				t.Errorf("--gpu=%s: GPU %v of a task that can open %d", choice, at.devices, own)
			}
		}
	}
}
