// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/slurm-mps/slurm-mps/epilog"
)

// totals is the sum over the jobs that have ended since the log begins.
type totals struct {
	jobs, unclosed int
	jobFigures
}

// jobFigures is what is added up.
type jobFigures struct {
	Clients    int     `json:"clients_seen"`
	Left       int     `json:"clients_at_epilog"`
	Terminated int     `json:"terminated"`
	Faults     int     `json:"faults"`
	Seconds    float64 `json:"seconds"`
	BadEnds    int     `json:"bad_ends"`
	EnergyJ    int     `json:"energy_j"`
	Pauses     int     `json:"pauses"`
	PausedMS   int     `json:"paused_ms"`
}

// addUp adds up the summaries of a log. It skips other lines, and lines that are longer than a summary.
func addUp(log io.Reader) (t totals, err error) {
	lines := bufio.NewReaderSize(log, 64<<10)
	mark := []byte(`"step":"` + epilog.SummaryStep + `"`)
	unclosed := map[uint32]jobFigures{}
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
func (t *totals) add(line []byte, unclosed map[uint32]jobFigures) {
	var s struct {
		Step   string `json:"step"`
		Job    uint32 `json:"job"`
		Closed bool   `json:"closed"`
		jobFigures
	}
	if json.Unmarshal(line, &s) != nil || s.Step != epilog.SummaryStep {
		return
	}
	job := s.jobFigures.larger(unclosed[s.Job])
	if !s.Closed {
		t.unclosed++
		unclosed[s.Job] = job
		return
	}
	delete(unclosed, s.Job)
	t.jobs++
	t.Clients += job.Clients
	t.Left += job.Left
	t.Terminated += job.Terminated
	t.Faults += job.Faults
	t.Seconds += job.Seconds
	t.BadEnds += job.BadEnds
	t.EnergyJ += job.EnergyJ
	t.Pauses += job.Pauses
	t.PausedMS += job.PausedMS
}

func (f jobFigures) larger(g jobFigures) jobFigures {
	return jobFigures{max(f.Clients, g.Clients), max(f.Left, g.Left), max(f.Terminated, g.Terminated),
		max(f.Faults, g.Faults), max(f.Seconds, g.Seconds), max(f.BadEnds, g.BadEnds), max(f.EnergyJ, g.EnergyJ),
		max(f.Pauses, g.Pauses), max(f.PausedMS, g.PausedMS)}
}

func (t totals) families() []family {
	counter := func(name, help string, value float64) family {
		return family{name, "counter", help, []sample{{nil, value}}}
	}
	return []family{
		counter("closed_jobs_total", "Jobs whose leases were closed.", float64(t.jobs)),
		counter("epilog_failures_total", "Times that a lease could not be closed.", float64(t.unclosed)),
		counter("job_seconds_total", "Seconds that closed jobs had their leases.", t.Seconds),
		counter("clients_total", "Clients that closed jobs had.", float64(t.Clients)),
		counter("clients_at_epilog_total", "Clients that were still there when the epilog began.", float64(t.Left)),
		counter("terminated_clients_total", "Clients that the epilog ended by terminate_client.", float64(t.Terminated)),
		counter("faults_total", "Fatal GPU errors that servers of closed jobs handled.", float64(t.Faults)),
		counter("bad_ends_total", "Clients that ended by a signal, with a status other than 0, or by a fatal GPU error.",
			float64(t.BadEnds)),
		counter("energy_joules_total", "Energy of the GPUs of closed jobs, as far as it is known.", float64(t.EnergyJ)),
		counter("pauses_total", "Times that the guards of closed jobs paused the neighbours of a dead client.",
			float64(t.Pauses)),
		counter("paused_seconds_total", "Time of all pauses of closed jobs.", float64(t.PausedMS)/1000),
	}
}
