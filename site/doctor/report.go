// SPDX-License-Identifier: Apache-2.0

// Package doctor finds the faults that would make a job on this node fail, with a repair for each. mpsctl doctor prints
// it.
//
// It changes nothing, and every wait has a deadline. It reports nothing as wrong that it has not seen. Gathering and
// judging are separate: judge is pure.
package doctor

import (
	"context"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/state"
)

// Report is the result of doctor, in the form of its JSON.
type Report struct {
	Node     string          `json:"node"`
	Time     time.Time       `json:"time"`
	Complete bool            `json:"complete"` // all was seen
	Checked  checked         `json:"checked"`
	Checks   []outcome       `json:"checks,omitempty"` // with -v
	Findings []state.Finding `json:"findings"`
	Unseen   []string        `json:"errors"`
}

// checked counts the parts that doctor has read.
type checked struct {
	SlurmConf string `json:"slurm_conf"` // "" if there is none to read
	Driver    string `json:"driver"`     // its version, "" if it does not answer
	Proven    bool   `json:"proven"`     // on these GPUs, by known.json
	GPUs      int    `json:"gpus"`
	Programs  int    `json:"programs"`
	Checks    int    `json:"checks"`
}

// Examine reads the state of a node and judges it.
func Examine(ctx context.Context, q Question) Report { return newReport(gather(ctx, q)) }

func newReport(n node) Report {
	r := Report{Node: n.Name, Time: n.Time, Complete: len(n.Unseen) == 0, Unseen: n.Unseen}
	r.Checks, r.Findings = judge(n)
	r.Checked.Programs, r.Checked.Checks = len(n.Programs), len(checks)
	if n.Slurm != nil {
		r.Checked.SlurmConf = n.Slurm.Path
	}
	if n.Driver != nil {
		r.Checked.Driver, r.Checked.GPUs, r.Checked.Proven = n.Driver.Version, len(n.Driver.GPUs), n.Driver.proven()
	}
	return r
}

// Failed reports whether the node is not ready for jobs, or could not be read completely.
func (r Report) Failed(strict bool) bool {
	return !r.Complete || r.Count(state.Fault) > 0 || strict && len(r.Findings) > 0
}

// Count returns the number of findings of a level.
func (r Report) Count(level state.Level) (n int) {
	for _, f := range r.Findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

// proven reports whether slurm-mps was proven with this driver on every type of GPU here.
func (d *driverState) proven() bool {
	return len(d.GPUs) > 0 && !slices.ContainsFunc(d.GPUs, func(g device) bool {
		return !slices.Contains(known().Proven, struct{ Driver, GPU string }{d.Version, g.Device.Name})
	})
}
