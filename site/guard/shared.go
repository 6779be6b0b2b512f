// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// Other users' programs may compute on a shared GPU, and then its samples do not fall to 0. The driver also samples
// processes: each sample names one process that computed. The job's clients compute as their server. If n others
// compute, too, each sample is the server's with a chance of 1/(n+1), as long as the server has work in flight
// (measured on an H100: docs/decisions.md, 54). So the job's work is done when its servers have been absent from enough.

const (
	// sampleEvery is the interval at which the driver takes samples (measured on an H200 and an H100).
	sampleEvery = 200 * time.Millisecond
	// workLately is the time for which a process that was seen at work counts as one that computes.
	workLately = 3 * time.Second
	// maxRounds limits the samples that are kept. With more than 36 others, no number of them is enough.
	maxRounds = 512
)

// enough returns how many samples in a row without the job's servers prove that their work is done, beside some others
// that were seen in them. By chance, work in flight is absent from so many once in a million times: (n/(n+1))^(14n+7).
func enough(others int) int { return 14*others + 7 }

// sharing is the use of a GPU by the job's servers and by others.
type sharing struct {
	others bool           // processes that are not the job's servers have contexts
	known  bool           // the driver lists a server of the job by its pid, and tells which processes work
	worked uint64         // the latest sample of the job's servers, in microseconds since 1970
	seen   map[int]uint64 // the latest samples of others, by pid
	rounds []round        // since the latest sample of the job's servers
	latest uint64         // the latest sample of anyone
	proved uint64         // the first of the latest samples that are enough; 0 if there are too few
}

// round is a sample in which others worked, or no one did.
type round struct {
	micros uint64
	pids   []int
}

// take takes what a line says about a GPU. ours reports whether a pid is a server of the job.
func (s *sharing) take(u gauge.Usage, ours func(pid int) bool) {
	lists := slices.ContainsFunc(u.Processes, ours)
	s.others = slices.ContainsFunc(u.Processes, func(pid int) bool { return !ours(pid) })
	s.known = u.WorkKnown && lists
	if s.seen == nil {
		s.seen = map[int]uint64{}
	}
	var r round
	var latest uint64
	present := false
	for _, w := range u.Work {
		latest = max(latest, w.Micros)
		switch _, client := u.Clients[w.PID]; {
		case client: // a driver that names clients does not tell when their server is absent
			present = true
		case ours(w.PID):
			present, s.worked = true, max(s.worked, w.Micros)
		case w.Percent > 0:
			s.seen[w.PID], r.pids, r.micros = w.Micros, append(r.pids, w.PID), max(r.micros, w.Micros)
		}
	}
	for _, sample := range u.Samples {
		latest = max(latest, sample.Micros)
		if sample.Percent == 0 {
			r.micros = max(r.micros, sample.Micros)
		}
	}
	maps.DeleteFunc(s.seen, func(_ int, at uint64) bool { return at+uint64(workLately.Microseconds()) < latest })
	s.others = s.others || len(s.seen) > 0 // a graphics program is not among the processes
	switch {
	case present || !s.known:
		s.rounds = nil
	case r.micros > 0:
		for n := s.samples(u, r); n > 0; n-- {
			s.rounds = append(s.rounds, round{r.micros - uint64(n-1)*uint64(sampleEvery.Microseconds()), r.pids})
		}
		s.rounds = s.rounds[max(0, len(s.rounds)-maxRounds):]
	}
	s.latest = max(s.latest, s.worked, r.micros)
	s.prove()
}

// samples returns how many samples a line has. The driver gives one for each process, also of a longer time, so the
// samples of the whole GPU in that time are counted.
func (s *sharing) samples(u gauge.Usage, r round) int {
	passed := time.Duration(r.micros-min(r.micros, s.latest)) * time.Microsecond
	return max(1, min(len(u.Samples), int((passed+sampleEvery/2)/sampleEvery)))
}

// isOurServer reports whether a process is a server of the job: a child of one of its daemons. It remembers the answer
// until the next full scan.
func (g *Guard) isOurServer(pid int) bool {
	ours, known := g.servers[pid]
	if known {
		return ours
	}
	stat, err := g.kernel.stat(pid)
	if errors.Is(err, proc.ErrSilent) {
		return false
	}
	isParent := func(d proc.Process) bool { return d.PID > 0 && d.PID == stat.Parent }
	ours = err == nil && slices.ContainsFunc(g.Daemons(), isParent)
	g.servers[pid] = ours
	return ours
}

// prove finds the shortest row of the latest samples that is enough.
func (s *sharing) prove() {
	s.proved = 0
	who := map[int]bool{}
	for i := len(s.rounds) - 1; i >= 0; i-- {
		for _, pid := range s.rounds[i].pids {
			who[pid] = true
		}
		if len(s.rounds)-i >= enough(len(who)) {
			s.proved = s.rounds[i].micros
			return
		}
	}
}

// proves reports whether the work of a client that died at a time is done.
func (s *sharing) proves(died time.Time) bool {
	return s.proved > uint64(died.Add(sampleTime).UnixMicro())
}

// hopeless reports whether no proof can come within a time, and the GPU may not get idle either.
func (s *sharing) hopeless(within time.Duration, now time.Time) bool {
	return s.others && (!s.known || s.missing(now) > within)
}

// missing returns the time that a proof takes from now on, if the job's servers stay absent. It is 0 if no others work:
// then the samples of the whole GPU are enough.
func (s *sharing) missing(now time.Time) time.Duration {
	working := 0
	for _, at := range s.seen {
		if at > uint64(now.Add(-workLately).UnixMicro()) {
			working++
		}
	}
	if working == 0 {
		return 0
	}
	return time.Duration(max(0, enough(working)-len(s.rounds))) * sampleEvery
}
