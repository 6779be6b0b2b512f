// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// series counts the series that Prometheus gets of a healthy node with so many GPUs and running jobs: all, and those
// with the label jobid.
func series(gpus, jobs int) (all, ofJobs int) {
	var n state.Node
	for range gpus {
		n.GPUs = append(n.GPUs, state.GPU{})
	}
	for id := range jobs {
		n.Jobs = append(n.Jobs, state.Job{ID: uint32(id + 1), Phase: state.Opened,
			Daemons: []state.Daemon{{State: state.Serves}}, Report: usage.Report{Job: uint32(id + 1)}})
	}
	count := func(families []family) (sum int) {
		for _, f := range families {
			sum += len(f.samples)
		}
		return sum
	}
	ofJobs = count(runningMetrics(n.Jobs))
	return count(nodeMetrics(n, nil)) + ofJobs + count(totals{}.families()), ofJobs
}

// What a large site stores grows with its GPUs and its jobs alone: a job adds six series, and not one for each rank.
// The last row is a node with 24 jobs by shards.
func TestSeriesOfANode(t *testing.T) {
	for _, c := range []struct{ gpus, jobs, all, ofJobs int }{
		{0, 0, 15, 0}, {8, 0, 31, 0}, {8, 1, 37, 6}, {8, 8, 79, 48}, {8, 24, 175, 144},
	} {
		if all, ofJobs := series(c.gpus, c.jobs); all != c.all || ofJobs != c.ofJobs {
			t.Errorf("%d GPUs and %d jobs have %d series, %d of jobs; want %d and %d",
				c.gpus, c.jobs, all, ofJobs, c.all, c.ofJobs)
		}
	}
}
