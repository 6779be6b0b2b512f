// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"github.com/slurm-mps/slurm-mps/epilog"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

var jobTotals = []struct {
	name, help string
	of         func(usage.Totals) float64
}{
	{"job_clients_seen", "Clients that a running job has had.",
		func(t usage.Totals) float64 { return float64(t.ClientsSeen) }},
	{"job_clients_peak", "Maximum number of clients of a running job at the same time.",
		func(t usage.Totals) float64 { return float64(t.ClientsPeak) }},
	{"job_bad_ends", "Clients of a running job that ended by a signal, with a status other than 0, or by a fatal GPU error.",
		func(t usage.Totals) float64 { return float64(t.BadEnds) }},
	{"job_energy_joules", "Energy of the GPUs of a running job since its begin, 0 if it is not known.",
		func(t usage.Totals) float64 { return float64(t.EnergyJ) }},
	{"job_pauses", "Times that the guard of a running job paused the ranks.",
		func(t usage.Totals) float64 { return float64(t.Pauses) }},
	{"job_paused_seconds", "Time of all pauses of a running job.",
		func(t usage.Totals) float64 { return float64(t.PausedMillis) / 1000 }},
}

// runningMetrics returns the totals of running jobs that this user may read. The label is jobid, because Prometheus uses
// job for the name of a scrape. The use of a GPU is DCGM's: docs/operator.md has how to give its metrics the job.
func runningMetrics(jobs []state.Job) (totals []family) {
	for _, t := range jobTotals {
		totals = append(totals, family{name: t.name, kind: "gauge", help: t.help})
	}
	for _, j := range jobs {
		if j.Report.Job == 0 || lease.IsShared(j.ID) {
			continue
		}
		labels := []string{"jobid", strconv.FormatUint(uint64(j.Report.Job), 10), "user", j.Report.User, "partition", j.Report.Partition}
		for n, t := range jobTotals {
			totals[n].samples = append(totals[n].samples, sample{labels, t.of(j.Report.Totals)})
		}
	}
	return totals
}

// counters are the metrics that add up a figure of the summaries of ended jobs.
var counters = []struct {
	name, help string
	key        string  // of the figure
	units      float64 // of the figure, in one unit of the metric
}{
	{"job_seconds_total", "Seconds that closed jobs had their leases.", "seconds", 1},
	{"clients_total", "Clients that closed jobs had.", "clients_seen", 1},
	{"clients_at_epilog_total", "Clients that were still there when the epilog began.", "clients_at_epilog", 1},
	{"terminated_clients_total", "Clients that the epilog ended by terminate_client.", "terminated", 1},
	{"faults_total", "Fatal GPU errors that servers of closed jobs handled.", "faults", 1},
	{"bad_ends_total", "Clients that ended by a signal, with a status other than 0, or by a fatal GPU error.",
		"bad_ends", 1},
	{"energy_joules_total", "Energy of the GPUs of closed jobs, as far as it is known.", "energy_j", 1},
	{"pauses_total", "Times that the guards of closed jobs paused the neighbours of a dead client.", "pauses", 1},
	{"paused_seconds_total", "Time of all pauses of closed jobs.", "paused_ms", 1000},
}

// totals is the sum over the jobs that have ended since the log begins.
type totals struct {
	jobs, unclosed int
	figures        figures
}

// figures are numbers of a job by their key in its summary.
type figures map[string]float64

// addUp adds up the summaries of a log. It skips other lines, and lines that are longer than a summary.
func addUp(log io.Reader) (t totals, err error) {
	lines := bufio.NewReaderSize(log, 64<<10)
	mark := []byte(`"step":"` + epilog.SummaryStep + `"`)
	t.figures = figures{}
	unclosed := map[uint32]figures{}
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return t, nil
		case err == nil && bytes.Contains(line, mark):
			t.add(line, unclosed)
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return t, err
		}
	}
}

// add adds a job whose lease is closed. An earlier epilog of the job that failed may have ended the clients that it
// counted. So add takes the larger figures of both summaries.
func (t *totals) add(line []byte, unclosed map[uint32]figures) {
	var s struct {
		Step   string
		Job    uint32
		Daemon string // that jobs have shared; "" for a job
		Closed bool
	}
	var values map[string]any
	if json.Unmarshal(line, &s) != nil || s.Step != epilog.SummaryStep || json.Unmarshal(line, &values) != nil {
		return
	}
	job := figures{}
	for _, c := range counters {
		value, _ := values[c.key].(float64)
		job[c.key] = max(value, unclosed[s.Job][c.key])
	}
	if !s.Closed {
		t.unclosed++
		unclosed[s.Job] = job
		return
	}
	delete(unclosed, s.Job)
	if s.Daemon == "" {
		t.jobs++
	}
	for key, value := range job {
		t.figures[key] += value
	}
}

func (t totals) families() []family {
	counter := func(name, help string, value float64) family {
		return family{name, "counter", help, []sample{{nil, value}}}
	}
	all := []family{
		counter("closed_jobs_total", "Jobs whose leases were closed.", float64(t.jobs)),
		counter("epilog_failures_total", "Times that a lease could not be closed.", float64(t.unclosed)),
	}
	for _, c := range counters {
		all = append(all, counter(c.name, c.help, t.figures[c.key]/c.units))
	}
	return all
}
