package meter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"

	"github.com/slurm-mps/slurm-mps/epilog"
)

// totals are what the jobs came to that have ended since the log begins.
type totals struct {
	jobs, unclosed, clients, left, terminated, faults int
	seconds                                           float64
}

// addUp adds up the summaries of a log. A line that is none is passed over, and so is one that is longer than a summary
// can be.
func addUp(log io.Reader) (t totals, err error) {
	lines := bufio.NewReaderSize(log, 64<<10)
	mark := []byte(`"step":"` + epilog.SummaryStep + `"`)
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case err == io.EOF:
			return t, nil
		case err == nil && bytes.Contains(line, mark):
			t.add(line)
		case err != nil && err != bufio.ErrBufferFull:
			return t, err
		}
	}
}

func (t *totals) add(line []byte) {
	var s struct {
		Step    string  `json:"step"`
		Clients int     `json:"clients"`
		Left    int     `json:"left"`
		Ended   int     `json:"terminated"`
		Faults  int     `json:"faults"`
		Seconds float64 `json:"seconds"`
		Closed  bool    `json:"closed"`
	}
	if json.Unmarshal(line, &s) != nil || s.Step != epilog.SummaryStep {
		return
	}
	if !s.Closed {
		t.unclosed++
		return // its next epilog says the rest
	}
	t.jobs++
	t.clients += s.Clients
	t.left += s.Left
	t.terminated += s.Ended
	t.faults += s.Faults
	t.seconds += s.Seconds
}

func (t totals) families() []family {
	counter := func(name, help string, value float64) family {
		return family{name, "counter", help, []sample{{nil, value}}}
	}
	return []family{
		counter("closed_jobs_total", "Jobs whose leases were closed.", float64(t.jobs)),
		counter("failed_closes_total", "Times that a lease could not be closed.", float64(t.unclosed)),
		counter("job_seconds_total", "Seconds that closed jobs had their leases.", t.seconds),
		counter("clients_total", "Clients that closed jobs had.", float64(t.clients)),
		counter("left_clients_total", "Clients that were still there when the epilog began.", float64(t.left)),
		counter("terminated_clients_total", "Clients that were ended by terminate_client.", float64(t.terminated)),
		counter("faults_total", "Fatal GPU errors that servers of closed jobs handled.", float64(t.faults)),
	}
}
