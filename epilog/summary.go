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

// Summary has the totals of a job for the log. It is a line of JSON that a site collects, and that mpsctl metrics
// adds up. The totals down to Faults are from the servers' logs. The job's user can write these logs, so the totals are
// good for a chart, but prove nothing.
type Summary struct {
	Clients         int     // processes that were clients of MPS
	Peak            int     // maximum of a daemon's clients at the same time, added up over the daemons
	ClientsAtEpilog int     // clients that still ran when the epilog began
	Terminated      int     // clients that a terminate_client ended, ours or the user's
	Faults          int     // fatal GPU errors that a server handled
	Seconds         float64 // from the lease to now
	// These are from the job's guard, so no user can write them.
	Ended        int   // clients that ended beside living neighbours and whose files were held
	Outside      int   // processes that had a GPU open and were no client of MPS
	Pauses       int   // of the neighbours of a dead client
	PausedMillis int64 // all pauses together
}

// maxSummed limits what is read of a log: 16000 clients (measured: 1 KiB a client). The rest of the log is not
// counted.
const maxSummed = 16 << 20

// logSizes returns the sizes of the servers' logs, in the order of lease.Daemons. Later lines are an effect of the
// epilog.
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

// summarise reads the logs, so it must run before the epilog removes them. It skips a log that is missing, or that is
// not the user's own file.
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

// guarded adds the numbers of the job's guard, if the job had a guard.
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
	s.Pauses, s.PausedMillis = g.Pauses, g.PausedMillis
}

func (s *Summary) add(t tally) {
	s.Clients += t.clients
	s.Peak += t.peak
	s.ClientsAtEpilog += t.left
	s.Terminated += t.terminated
	s.Faults += t.faults
}

// logSummary puts the summary into the log, with the means of the report if there is one.
func (e Epilog) logSummary(l lease.Lease, s Summary, r usage.Report, closed bool) {
	var request policy.Request
	_ = json.Unmarshal(l.Request, &request) // a missing value is ""
	line := e.Log.Info().Str("step", SummaryStep).Str("user", l.Job.User).Str("partition", request.Partition).
		Str("account", request.Account).Str("rule", l.Rule).Int("gpus", len(l.Held)).
		Int("clients", s.Clients).Int("peak", s.Peak).Int("clients_at_epilog", s.ClientsAtEpilog).Int("terminated", s.Terminated).
		Int("faults", s.Faults).Int("held", s.Ended).Int("outside", s.Outside).
		Int("pauses", s.Pauses).Int64("paused_ms", s.PausedMillis).Float64("seconds", s.Seconds).Bool("closed", closed)
	if mean := r.Mean(); r.Job != 0 {
		for _, f := range usage.Percentages {
			if percent := f.Of(mean); percent >= 0 {
				line = line.Float64(f.Key, math.Round(percent*10)/10)
			}
		}
		line = line.Int("max_"+usage.MemoryUsed.Key, mean.UsedMiB).Int("bad_ends", r.BadEnds).Int("energy_j", r.EnergyJ)
	}
	line.Send()
}

// SummaryStep marks a summary's line in the log.
const SummaryStep = "summary"

// tally counts the clients in the log of one daemon's servers.
type tally struct {
	clients, peak, left, terminated, faults int
	server                                  string       // the server that writes the lines
	here                                    map[int]bool // its clients now
}

// tallyOf reads a log. began is its size when the epilog began: the clients at that point are left over.
func tallyOf(log io.Reader, began int64) tally {
	t := tally{here: map[int]bool{}}
	lines := bufio.NewReaderSize(io.LimitReader(log, maxSummed), 64<<10)
	offset, noted := int64(0), false
	for {
		line, err := lines.ReadSlice('\n')
		offset += int64(len(line))
		if last := err != nil && !errors.Is(err, bufio.ErrBufferFull); !noted && (last || offset > began) {
			t.left, noted = len(t.here), true
		}
		switch {
		case err == nil:
			t.readLine(line)
		case errors.Is(err, bufio.ErrBufferFull): // this line is not from the server
		default:
			return t
		}
	}
}

// readLine counts the event of a line. A process counts once, even if it makes several contexts.
func (t *tally) readLine(line []byte) {
	l, ok := serverlog.Parse(line)
	if !ok {
		return
	}
	if l.Server != t.server {
		t.server = l.Server
		clear(t.here) // the clients of the earlier server have ended with it
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
