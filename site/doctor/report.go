// SPDX-License-Identifier: Apache-2.0

// Package doctor finds what stands between this node and a working job, each with its repair; mpsctl doctor prints it.
//
// The promise: it changes nothing, waits for nobody without a deadline, and says nothing is wrong that it has not seen.
// Gathering and judging are apart: Judge is pure.
package doctor

import (
	"slices"
	"time"
)

// Report is what doctor found, as its JSON is.
type Report struct {
	Node     string    `json:"node"`
	Time     time.Time `json:"time"`
	Complete bool      `json:"complete"` // all was seen
	Looked   looked    `json:"checked"`
	Checks   []Check   `json:"checks,omitempty"` // with -v
	Findings []Finding `json:"findings"`
	Unseen   []string  `json:"errors"`
}

// looked is what was looked at.
type looked struct {
	SlurmConf string `json:"slurm_conf"` // "" where there is none to read
	Driver    string `json:"driver"`     // its version, "" where it does not answer
	GPUs      int    `json:"gpus"`
	Programs  int    `json:"programs"`
	Checks    int    `json:"checks"`
}

func NewReport(n Node) Report {
	r := Report{Node: n.Name, Time: n.Time, Complete: len(n.Unseen) == 0, Findings: Judge(n), Unseen: n.Unseen}
	r.Looked.Programs, r.Looked.Checks = len(n.Programs), len(checks)
	if n.Slurm != nil {
		r.Looked.SlurmConf = n.Slurm.Path
	}
	if n.Driver != nil {
		r.Looked.Driver, r.Looked.GPUs = n.Driver.Version, len(n.Driver.GPUs)
	}
	return r
}

// Failed says that the node is not ready for jobs, or that not all of it was seen.
func (r Report) Failed(strict bool) bool {
	return !r.Complete || slices.ContainsFunc(r.Findings, func(f Finding) bool { return strict || f.Level == Fault })
}

func (r Report) Count(level Level) (n int) {
	for _, f := range r.Findings {
		if f.Level == level {
			n++
		}
	}
	return n
}
