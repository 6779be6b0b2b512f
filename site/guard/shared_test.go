// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// By chance, work in flight is absent from enough samples once in a million times, whatever the number of others, and
// not many more samples are taken than that needs.
func TestEnoughSamples(t *testing.T) {
	for others := 1; others <= maxRounds/14; others++ {
		chance := math.Pow(float64(others)/float64(others+1), float64(enough(others)))
		if chance > 1e-6 || chance < 1e-7 {
			t.Errorf("beside %d others, %d samples have a chance of %g", others, enough(others), chance)
		}
	}
}

// lineOf returns what gpu-usage says of a sample of a shared GPU: A is the job's server, B, C and so on are others', 0
// is a sample without work, - is no sample, ? is a driver that does not tell, x one that does not list the job's
// server.
func lineOf(sample rune, micros uint64) gauge.Usage {
	const busy = 99
	u := gauge.Usage{Known: true, TotalMiB: 1000, FreeMiB: 900, Processes: []int{'A', 'B', 'C'}, WorkKnown: true}
	u.Samples = []gauge.Sample{{Micros: micros, Percent: busy}}
	switch sample {
	case '0':
		u.Samples[0].Percent = 0
	case '-':
	case '?':
		u.WorkKnown = false
	case 'x':
		u.Processes, u.Work = []int{'B', 'C'}, []gauge.Work{{PID: 'B', Micros: micros, Percent: busy}}
	case 'm': // two samples
		u.Work = []gauge.Work{{PID: 'A', Micros: micros, Percent: busy}, {PID: 'B', Micros: micros + 1, Percent: busy}}
	case 'b': // listed, without work
		u.Work = []gauge.Work{{PID: 'B', Micros: micros, Percent: 0}}
	default:
		u.Work = []gauge.Work{{PID: int(sample), Micros: micros, Percent: busy}}
	}
	return u
}

func isA(pid int) bool { return pid == 'A' }

// The job's servers were absent from enough samples after a client's death: its work is done, although others work.
//
// Contract: G2
func TestWorkIsDoneBesideOthers(t *testing.T) {
	const b = "BBBBBBBBBBBBBBBBBBBBB" // enough beside one
	storm := ""
	for i := range 1000 {
		storm += string(rune('B' + i))
	}
	for _, c := range []struct {
		name, before, after string // samples, one in 200 ms; the client dies 100 ms after the last one before
		want                int    // after how many samples after the death the work is done; 0 for never
	}{
		{"one other works all the time", "", "BB" + b, 22}, // the first one began before the death
		{"one less than enough", "", "B" + b[1:], 0},
		{"samples before the death count for nothing", b, "BB" + b, 22},
		{"the job's last sample is late", "", "BABBA" + b, 26},
		{"the job works again just before the end", "", "B" + b[1:] + "A" + b, 43},
		{"one sample is enough to begin again", "", strings.Repeat(b[1:]+"A", 20), 0},
		{"the job's and another's sample in one line", "", "B" + b[1:] + "m" + b, 43},
		{"two others in turns", "", "B" + strings.Repeat("BC", 18), 36},
		{"two others, one less than enough", "", "B" + strings.Repeat("BC", 17), 0},
		{"the second comes late", "", "B" + b[1:] + "C" + b, 36},
		{"the second is seen before the row only", "", "BCCA" + b, 25},
		{"no one works", "", "00000000", 8},
		{"one starts and stops", "", "0" + strings.Repeat("B000", 10), 22},
		{"no samples", "", strings.Repeat("-", 100), 0},
		{"some answers without a sample", "", "B" + strings.Repeat("B-", 21), 42},
		{"others without work", "", strings.Repeat("b", 100), 0},
		{"each sample has another one", "", storm, 0},
		{"the driver tells nothing", "", strings.Repeat("?", 100), 0},
		{"once it tells nothing", "", "B" + b[1:] + "?" + b, 43},
		{"the job's server has another pid", "", strings.Repeat("x", 100), 0},
		{"once it is not listed", "", "B" + b[1:] + "x" + b, 43},
	} {
		var s sharing
		at := uint64(10_000_000)
		for _, sample := range c.before {
			at += 200_000
			s.take(lineOf(sample, at), isA)
		}
		died, got := time.UnixMicro(int64(at+100_000)), 0
		for i, sample := range []rune(c.after) {
			at += 200_000
			if s.take(lineOf(sample, at), isA); got == 0 && s.proves(died) {
				got = i + 1
			}
		}
		must.Equal(t, fmt.Sprintf("%s: done after", c.name), got, c.want)
		must.Hold(t, len(s.rounds) <= maxRounds && len(s.seen) <= int(workLately/sampleEvery)+1,
			"%s: %d samples and %d others are kept", c.name, len(s.rounds), len(s.seen))
	}
}

// On a busy node a line has several samples. The driver gives one for each process then, and those of the whole GPU tell
// how many there were. Without those, or in a short time, it counts once.
func TestALineOfSeveralSamples(t *testing.T) {
	for _, c := range []struct{ apart, samples, lines int }{{200, 1, 21}, {600, 3, 7}, {600, 1, 21}, {600, 0, 21}, {200, 3, 21}, {0, 9, 21}} {
		var s sharing
		at, lines := uint64(10_000_000), 0
		s.take(lineOf('A', at), isA)
		for died := time.UnixMicro(int64(at)); !s.proves(died.Add(-sampleTime)) && lines < 50; lines++ {
			at += uint64(c.apart) * 1000
			u := lineOf('B', at+1)
			for u.Samples = nil; len(u.Samples) < c.samples; {
				u.Samples = append(u.Samples, gauge.Sample{Micros: at, Percent: 99})
			}
			s.take(u, isA)
		}
		must.Equal(t, fmt.Sprintf("%+v: done after", c), lines, c.lines)
	}
	var s sharing
	s.take(lineOf('A', 10_000_000), isA)
	u := lineOf('B', 10_000_000+21*200_000)
	u.Samples = slices.Repeat(u.Samples, 21)
	if s.take(u, isA); s.proves(time.UnixMicro(10_000_000)) || !s.proves(time.UnixMicro(10_200_000).Add(-sampleTime-1)) {
		t.Errorf("21 samples from one that began before the death: %+v", s.rounds)
	}
}

// gauge.Work that is in flight is not taken for done. Each sample names one of the servers that compute, by chance, as on an
// H100. Others that come and go do not change that.
//
// Contract: G2
func TestWorkInFlightBesideOthers(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	died := time.UnixMicro(1_000_000)
	for _, others := range []int{1, 2, 3, 8, 30} {
		for _, comeAndGo := range []bool{false, true} {
			var s sharing
			at, working := uint64(died.UnixMicro()), others
			for range 20_000 {
				if at += 200_000; comeAndGo && random.IntN(10) == 0 {
					working = random.IntN(others + 1)
				}
				s.take(lineOf('A'+rune(random.IntN(working+1)), at), isA)
				must.Have(t, !s.proves(died), "beside %d others, work counts as done after %d samples", others, len(s.rounds))
			}
		}
	}
}

// A proof takes longer with more others. None can come if the driver does not tell whose work it is. Without others at
// work, the samples of the whole GPU are enough.
func TestWhetherAPauseIsHopeless(t *testing.T) {
	for _, c := range []struct {
		name, samples string
		within        time.Duration
		want          bool
	}{
		{"nothing is known", "", 0, false},
		{"the job alone works", "AAAA", 0, false},
		{"one other works", "AB", 20*sampleEvery - 1, true},
		{"in its time", "AB", 20 * sampleEvery, false},
		{"the job's work goes on", "ABBBBBBBBBA", 21*sampleEvery - 1, true},
		{"two others", "ABC", 33*sampleEvery - 1, true},
		{"two others, in time", "ABC", 33 * sampleEvery, false},
		{"most of the proof is there", "ABBBBBBBBBBBBBBBBBBB", 2 * sampleEvery, false},
		{"the other has stopped", "ABBBB" + strings.Repeat("A", 20), 0, false},
		{"the driver does not tell", "???", time.Hour, true},
		{"the job's server has another pid", "xxx", time.Hour, true},
	} {
		var s sharing
		at := uint64(1_000_000_000)
		for _, sample := range c.samples {
			at += 200_000
			s.take(lineOf(sample, at), isA)
		}
		if got := s.hopeless(c.within, time.UnixMicro(int64(at))); got != c.want {
			t.Errorf("%s: %v, %v are missing", c.name, got, s.missing(time.UnixMicro(int64(at))))
		}
	}
	var alone sharing
	if alone.take(gauge.Usage{Processes: []int{'A'}}, isA); alone.others || alone.hopeless(0, time.Now()) {
		t.Errorf("a driver that tells nothing of a GPU without others: %+v", alone)
	}
}

// A process is a server of the job if its parent is one of the job's daemons that run. The answer is kept until the
// next full scan.
func TestWhichServersAreOurs(t *testing.T) {
	r := stillGuard(t, time.Minute)
	self := must.Get(proc.Current())(t)
	child := r.child("echo ready; sleep 60").Process.Pid
	r.Daemons = func() []proc.Process { return []proc.Process{{}} }
	if r.isOurServer(child) || r.isOurServer(1) { // the parent of 1 is 0
		t.Error("a server of a daemon that has not started")
	}
	r.Daemons = func() []proc.Process { return []proc.Process{{}, self} }
	must.Hold(t, !r.isOurServer(child), "the answer is not kept")
	r.scan(time.Now())
	if !r.isOurServer(child) || r.isOurServer(1) || r.isOurServer(os.Getpid()) || r.isOurServer(1<<30) {
		t.Errorf("%v", r.servers)
	}
}

// Others' work is not the job's: the job is told of work that its client has left only if its own servers worked.
func TestWorkAfterADeathBesideOthers(t *testing.T) {
	died := time.UnixMicro(1_000_000)
	for samples, want := range map[string]bool{"A": false, "AA": true, "BBBBB": false, "BABB": true, "??": false} {
		u := usages{ours: isA}
		at := uint64(died.UnixMicro())
		for _, sample := range samples {
			at += 200_000
			u.take([]gauge.Usage{lineOf(sample, at)})
		}
		must.Equal(t, samples, u.workedAfter(&client{gpus: 1, died: died}), want)
	}
}

// Whose work it is: a program may compute without being among the processes, as one with graphics does. It counts as
// another for a time, also while only the job works. A driver that names clients in place of servers proves nothing.
func TestWorkThatNoProcessIsListedFor(t *testing.T) {
	const graphics, client = 'G', 'c'
	line := func(s *sharing, at uint64, pid rune) {
		u := gauge.Usage{Known: true, Processes: []int{'A'}, WorkKnown: true, Clients: map[int]int{client: 10}}
		u.Samples, u.Work = []gauge.Sample{{Micros: at, Percent: 99}}, []gauge.Work{{PID: int(pid), Micros: at, Percent: 99}}
		s.take(u, isA)
	}
	var s sharing
	line(&s, 101_000_000, 'A')
	must.Hold(t, !s.others, "the job is alone")
	for at := uint64(101_200_000); at < 106_000_000; at += 200_000 {
		if line(&s, at, graphics); !s.others {
			t.Fatalf("a program with graphics computes: %+v", s)
		}
	}
	must.Hold(t, s.proves(time.UnixMicro(101_000_000)), "beside a program with graphics, no work is done")
	for at := uint64(106_000_000); at < 110_000_000; at += 200_000 {
		if line(&s, at, 'A'); s.others != (at <= 105_800_000+uint64(workLately.Microseconds())) {
			t.Errorf("at %d, others %v", at, s.others)
		}
	}
	for at := uint64(110_000_000); at < 130_000_000; at += 200_000 {
		if line(&s, at, client); s.proves(time.UnixMicro(110_000_000)) || s.others {
			t.Fatalf("the driver names a client: %+v", s)
		}
	}
}
