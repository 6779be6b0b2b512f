// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// The bounds of the reports that are kept on a node.
const (
	maxReports   = 1000
	maxReportAge = 30 * 24 * time.Hour
	// reportWait is how long the epilog waits for a slow disk to store the report.
	reportWait = 200 * time.Millisecond
	// heldTime is how long a job holds GPUs without a client until a site wants to see it. The report of a shorter one
	// would push another one out.
	heldTime = time.Minute
)

// keeping is a report that is being stored, while the epilog does its other steps. The channel is nil without a report.
type keeping struct {
	usage.Report
	kept chan error // fs.ErrNotExist if the recorder has left no report
}

// keepReport reads the report that the recorder has left in the job's folder, finishes it, and keeps it. The recorder
// has ended, because the guard ends it and has ended too, or it serves other jobs that share the daemon.
func (e Epilog) keepReport(l lease.Lease, guard *lease.GuardState) keeping {
	ended, kept := time.Now(), make(chan error, 1)
	folder := e.Store.JobDir(cmp.Or(l.Joined, l.Job.ID))
	r, err := usage.Read(filepath.Join(folder, usage.RunningOf(l.Job.ID, l.Joined)))
	if err == nil {
		if l.Joined != 0 {
			endGone(r.Clients, ended)
		}
		r = finished(r, guard, ended)
	}
	if r.ClientsSeen == 0 && !r.NoMPS && r.End.Sub(r.Begin) < heldTime {
		kept <- err
	} else {
		go func() { kept <- e.keepReportOf(l.Job.UID, r) }()
	}
	return keeping{r, kept}
}

// endGone sets the end of clients that are gone. The recorder of a shared daemon has not been told that the job ends.
func endGone(clients []usage.Client, now time.Time) {
	for i, c := range clients {
		if c.End.IsZero() && !proc.Exists(c.PID) {
			clients[i].End = now
		}
	}
}

// finished completes the report of an ended job. A client without an end has outlived the job. The guard's counts are
// complete, also if the recorder has ended early.
func finished(r usage.Report, guard *lease.GuardState, now time.Time) usage.Report {
	if guard != nil {
		r.Counts = guard.Counts
	}
	if r.End.IsZero() {
		r.End = now
		r.ScaleEnergy(now)
	}
	for i, c := range r.Clients {
		if c.End.IsZero() {
			r.Clients[i].End, r.Clients[i].Ending = r.End, usage.AtEpilog
		}
	}
	return r
}

func (e Epilog) keepReportOf(uid uint32, r usage.Report) error {
	if err := os.MkdirAll(e.Reports, 0o755); err != nil {
		return fmt.Errorf("cannot keep report: %w", osfile.ExplainFull(e.Reports, err))
	}
	dir, err := osfile.OpenFolder(e.Reports)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = r.Write(dir, strconv.FormatUint(uint64(r.Job), 10)+".json", uid)
	return errors.Join(err, prune(e.Reports, maxReports, maxReportAge, reportOwner))
}

// userField is the user of a report, in its first fields.
var userField = regexp.MustCompile(`"user":"([^"]*)"`)

// reportOwner returns the user of a kept report. It reads the beginning only, because a node has many reports.
func reportOwner(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	first, _ := io.ReadAll(io.LimitReader(file, 1024))
	return string(append(userField.FindSubmatch(first), nil, nil)[1])
}

// wait waits until a report is kept, and logs a failure.
func (e Epilog) wait(k keeping) {
	if k.kept == nil {
		return
	}
	err := fmt.Errorf("the disk of %s does not take it within %v", e.Reports, reportWait)
	select {
	case err = <-k.kept:
	case <-time.After(reportWait):
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.Log.Warn().Err(err).Msg("the job's report is not kept")
	}
}

// SummaryStep marks the line of the log that has the totals of a job. A site collects these lines, and mpsctl metrics
// adds them up.
const SummaryStep = "summary"

// recordedStep marks the line of a job without MPS. It has no part in the totals of those with MPS.
const recordedStep = "recorded"

// logSummary logs the totals of a job: the guard's own if the job had a guard, and those of the report if there is one.
func (e Epilog) logSummary(l lease.Lease, end daemonEnd, guard *lease.GuardState, r usage.Report, closed bool) {
	var request policy.Request
	_ = json.Unmarshal(l.Request, &request) // a missing value is ""
	step := SummaryStep
	if l.NoMPS {
		step = recordedStep
	}
	line := e.Log.Info().Str("step", step).Str("user", l.Job.User).Str("partition", request.Partition).
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
	case (l.NoMPS || l.Part.Shared()) && r.Job != 0:
		line = line.Int("clients_seen", r.ClientsSeen).Int("clients_peak", r.ClientsPeak)
	}
	if r.Job != 0 {
		line = addUse(line, r)
	}
	line.Send()
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
