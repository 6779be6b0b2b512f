// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"math"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// Summary is what a job came to, for the log: a line of JSON that a site collects, and that mpsctl metrics adds up.
// All but Seconds are what the servers' logs say, which the job's user can write: figures for a chart, and no proof.
type Summary struct {
	Clients         int     // processes that were clients of MPS
	Peak            int     // at most so many of one daemon at the same time, added up over the daemons
	ClientsAtEpilog int     // were clients still when the epilog began
	Terminated      int     // were ended by terminate_client, ours or the user's
	Faults          int     // fatal GPU errors that a server handled
	Seconds         float64 // from the lease to now
	// What the job's guard has seen, which no user can write.
	Ended   int // clients that ended beside living neighbours and whose files were held
	Outside int // processes that had a GPU open and were no client of MPS
}

// maxSummed bounds what is read of a log: 16000 clients (measured: 1 KiB a client). What comes behind it is not
// counted.
const maxSummed = 16 << 20

// logSizes are where the servers' logs end, for lease.Daemons: what comes later the epilog has brought about.
func logSizes(l lease.Lease) []int64 {
	all := make([]int64, len(l.Daemons))
	for n, d := range l.Daemons {
		if log, size, err := serverlog.Open(d.LogDir, serverlog.Name, l.Job.UID); err == nil {
			all[n] = size
			log.Close()
		}
	}
	return all
}

// summarise reads the logs, which must still be there. One that is not there, or not the user's own file, counts
// nothing.
func summarise(l lease.Lease, began []int64) Summary {
	var s Summary
	for n, d := range l.Daemons {
		log, _, err := serverlog.Open(d.LogDir, serverlog.Name, l.Job.UID)
		if err != nil {
			continue
		}
		s.add(tallyOf(log, began[n]))
		log.Close()
	}
	if !l.CreatedAt.IsZero() {
		s.Seconds = time.Since(l.CreatedAt).Seconds()
	}
	return s
}

// guarded adds what the job's guard has seen, if there was one.
func (s *Summary) guarded(g lease.GuardState, err error) {
	if err != nil {
		return
	}
	for reason, count := range g.Released {
		if reason != lease.NoNeighbour {
			s.Ended += count
		}
	}
	s.Ended += g.Dead
	s.Outside = g.OutsideSeen
}

func (s *Summary) add(t tally) {
	s.Clients += t.clients
	s.Peak += t.peak
	s.ClientsAtEpilog += t.left
	s.Terminated += t.terminated
	s.Faults += t.faults
}

// logSummary puts the summary into the log, with the means of the report if there is one.
func (c Epilog) logSummary(l lease.Lease, s Summary, r usage.Report, closed bool) {
	var request policy.Request
	_ = json.Unmarshal(l.Request, &request) // what is missing is ""
	line := c.Log.Info().Str("step", SummaryStep).Str("user", l.Job.User).Str("partition", request.Partition).
		Str("account", request.Account).Str("rule", l.Rule).Int("gpus", len(l.Held)).
		Int("clients", s.Clients).Int("peak", s.Peak).Int("clients_at_epilog", s.ClientsAtEpilog).Int("terminated", s.Terminated).
		Int("faults", s.Faults).Int("held", s.Ended).Int("outside", s.Outside).Float64("seconds", s.Seconds).Bool("closed", closed)
	if mean := r.Mean(); r.Job != 0 {
		for _, figure := range []struct {
			name    string
			percent float64
		}{{"sm_util", mean.SMUtil}, {"sm_active", mean.SMActive}, {"dram", mean.DRAM}} {
			if figure.percent >= 0 {
				line = line.Float64(figure.name, math.Round(figure.percent*10)/10)
			}
		}
		line = line.Int("max_used_mib", mean.UsedMiB)
	}
	line.Send()
}

// SummaryStep marks a summary's line in the log.
const SummaryStep = "summary"

// tally counts what one daemon's servers say of their clients.
type tally struct {
	clients, peak, left, terminated, faults int
	server                                  string       // the one that writes
	here                                    map[int]bool // its clients now
}

// tallyOf reads a log. Clients that are there where the epilog began are left over.
func tallyOf(log io.Reader, began int64) tally {
	t := tally{here: map[int]bool{}}
	lines := bufio.NewReaderSize(io.LimitReader(log, maxSummed), 64<<10)
	at, noted := int64(0), false
	for {
		line, err := lines.ReadSlice('\n')
		at += int64(len(line))
		if last := err != nil && !errors.Is(err, bufio.ErrBufferFull); !noted && (last || at > began) {
			t.left, noted = len(t.here), true
		}
		switch {
		case err == nil:
			t.readLine(line)
		case errors.Is(err, bufio.ErrBufferFull): // a line that is none of the server's
		default:
			return t
		}
	}
}

// readLine counts what a line says. A process counts once, however many contexts it makes.
func (t *tally) readLine(line []byte) {
	l, ok := serverlog.Parse(line)
	if !ok {
		return
	}
	if l.Server != t.server {
		t.server = l.Server
		clear(t.here) // a server's clients are gone with it
	}
	if l.Fault() {
		t.faults++
	}
	if l.Terminated() {
		t.terminated++
	}
	if pid, ok := l.Connected(); ok && !t.here[pid] {
		t.here[pid] = true
		t.clients++
		t.peak = max(t.peak, len(t.here))
	}
	if pid, ok := l.Disconnected(); ok {
		delete(t.here, pid)
	}
}
