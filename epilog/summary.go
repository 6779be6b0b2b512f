// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"encoding/json"
	"math"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// SummaryStep marks the line of the log that has the totals of a job. A site collects these lines, and mpsctl metrics
// adds them up.
const SummaryStep = "summary"

// logSummary logs the totals of a job: the guard's own if the job had a guard, and those of the report if there is one.
func (e Epilog) logSummary(l lease.Lease, end daemonEnd, guard *lease.GuardState, r usage.Report, closed bool) {
	var request policy.Request
	_ = json.Unmarshal(l.Request, &request) // a missing value is ""
	line := e.Log.Info().Str("step", SummaryStep).Str("user", l.Job.User).Str("partition", request.Partition).
		Str("account", request.Account).Str("rule", l.Rule).Int("gpus", len(l.GPUs)).
		Int("clients_at_epilog", end.clients).Int("terminated", end.terminated).Bool("daemon_gone", end.gone).Bool("closed", closed)
	if !l.CreatedAt.IsZero() && !lease.IsShared(l.Job.ID) { // the jobs that shared it have theirs
		line = line.Float64("seconds", time.Since(l.CreatedAt).Seconds())
	}
	switch {
	case guard != nil && lease.IsShared(l.Job.ID): // the jobs that shared it have clients of their own
		line = line.Int("pauses", guard.Pauses).Int64("paused_ms", guard.PausedMillis)
	case guard != nil:
		line = addCounts(line, *guard)
	case l.Part.Shared() && r.Job != 0:
		line = line.Int("clients_seen", r.ClientsSeen).Int("clients_peak", r.ClientsPeak)
	}
	if r.Job != 0 {
		line = addUse(line, r)
	}
	line.Send()
}

// readGuard returns the state of a job's guard, nil if it has none or none that can be read.
func (e Epilog) readGuard(job uint32) *lease.GuardState {
	guard, err := e.Store.ReadGuard(job)
	if err != nil {
		return nil
	}
	return &guard
}

func addCounts(line *zerolog.Event, guard lease.GuardState) *zerolog.Event {
	held := guard.Dead // clients that ended beside living neighbours
	for reason, count := range guard.Released {
		if reason != lease.NoNeighbour {
			held += count
		}
	}
	return line.Int("clients_seen", guard.ClientsSeen).Int("clients_peak", guard.ClientsPeak).Int("held", held).
		Int("outside", guard.OutsideSeen).Int("pauses", guard.Pauses).Int64("paused_ms", guard.PausedMillis)
}

func addUse(line *zerolog.Event, r usage.Report) *zerolog.Event {
	mean := r.Mean()
	if !r.Whole() {
		line = line.Float64("part", math.Round(r.Part.Fraction()*1000)/1000)
	}
	for _, f := range usage.All {
		if value := f.Of(mean); value >= 0 {
			line = line.Float64(f.SummaryKey(), math.Round(value*10)/10)
		}
	}
	return line.Int("bad_ends", r.BadEnds).Int("faults", len(r.Faults)).
		Int("energy_j", r.EnergyJ)
}
