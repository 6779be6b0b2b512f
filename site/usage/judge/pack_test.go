// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	. "github.com/slurm-mps/slurm-mps/site/usage"
)

// trial is a number of ranks of a program, with a share, on a GPU.
type trial struct {
	gpu, program, share string
	ranks               int
}

// trials are what was measured: the rate of all ranks, and GPM's figures of rank 0.
type trials map[trial]struct {
	rate             float64
	active, dram, gr float64
}

// read reads the lines of a run on a GPU: "pack PROGRAM n=RANKS r=RANK rate RATE [gpm ACTIVE OCCUPANCY DRAM
// GRAPHICS TENSOR]", after a line "# share SHARE". More may follow on a line.
func read(t *testing.T) trials {
	files, err := filepath.Glob("testdata/packing-*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no data", err)
	}
	all := trials{}
	for _, name := range files {
		file := must.Get(os.Open(name))(t)
		defer file.Close()
		one := trial{gpu: strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "packing-"), ".txt")}
		seen := map[trial]int{}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if share, is := strings.CutPrefix(lines.Text(), "# share "); is {
				one.share = strings.Fields(share)[0]
			}
			if !strings.HasPrefix(lines.Text(), "pack ") {
				continue
			}
			var rank int
			var rate, occupancy float64
			_, err := fmt.Sscanf(lines.Text(), "pack %s n=%d r=%d rate %g", &one.program, &one.ranks, &rank, &rate)
			if err != nil {
				t.Fatalf("%s: %q: %v", name, lines.Text(), err)
			}
			m := all[one]
			m.rate += rate
			if _, gpm, is := strings.Cut(lines.Text(), " gpm "); is {
				if _, err := fmt.Sscan(gpm, &m.active, &occupancy, &m.dram, &m.gr); err != nil {
					t.Fatalf("%s: %q: %v", name, lines.Text(), err)
				}
			}
			all[one] = m
			seen[one]++
		}
		for one, n := range seen {
			if n != one.ranks || all[one].gr == 0 {
				t.Fatalf("%s: %d lines of %v, figures %v", name, n, one, all[one])
			}
		}
	}
	return all
}

// change is a change of a number of ranks, and what it gained.
type change struct {
	from, to         trial
	demand, measured float64
}

// queue is what the queue alone would predict.
func (c change) queue() float64 { return queue(c.demand, c.to.ranks) / queue(c.demand, c.from.ranks) }

func (c change) predicted(keep float64) float64 { return 1 + keep*(c.queue()-1) }

// changes returns the changes about which the model says something: to 2 and 4 ranks, and with overlap:2 to 8. Up to 4
// ranks were measured without a share, because overlap:2 divides a GPU little or not at all then.
func (all trials) changes() (changes []change) {
	for to, m := range all {
		if (to.share == "none") != (to.ranks <= maxUncapped) {
			continue
		}
		for ranks := 1; ranks < to.ranks; ranks *= 2 {
			from := trial{to.gpu, to.program, "none", ranks}
			before, measured := all[from]
			if !measured {
				continue
			}
			demand := demandOf(max(before.active, before.dram), ranks)
			changes = append(changes, change{from, to, demand, m.rate / before.rate})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return changes
}

// fit returns the part of the queue's gain that fits best, and the standard deviation of the logarithm of what is left.
// Each program has the same weight.
func fit(changes []change) (best, deviation float64) {
	deviation = math.Inf(1)
	for k := 0.4; k < 1.3; k += 0.01 {
		squares, of := map[string]float64{}, map[string]float64{}
		for _, c := range changes {
			squares[c.to.program] += math.Pow(math.Log(c.measured/c.predicted(k)), 2)
			of[c.to.program]++
		}
		sum := 0.0
		for program, square := range squares {
			sum += square / of[program]
		}
		if d := math.Sqrt(sum / float64(len(squares))); d < deviation {
			best, deviation = k, d
		}
	}
	return best, deviation
}

// The parameters are those that fit the data. Each program is predicted by the others: the mean error of the factor is
// at most 10 %, 95 % of the cases are within 25 %, the interval holds the measured gain in 90 %, and no gain is
// promised where there is a loss. Of ranks that wait for their processors, whom no fit has seen, the measured gain is
// above the lower bound. The page has the table of it.
func TestLeaveOneOut(t *testing.T) {
	all := read(t)
	busy, idle := all.changes(), []change{}
	busy = slices.DeleteFunc(busy, func(c change) bool {
		if c.demand < ownDemand {
			idle = append(idle, c)
		}
		return c.demand < ownDemand
	})
	k, d := fit(busy)
	if math.Abs(k-keep) > 0.005 || math.Abs(math.Exp(2*d)-spread) > 0.01 {
		t.Errorf("keep is %v and spread %v, the data have %.2f and %.2f", keep, spread, k, math.Exp(2*d))
	}
	cells, programs := map[trial]string{}, map[string]bool{}
	var errors, single float64
	var near, held, singles int
	for _, c := range busy {
		k, d := fit(slices.DeleteFunc(slices.Clone(busy), func(o change) bool { return o.to.program == c.to.program }))
		guess, width := c.predicted(k), math.Exp(2*d)
		off := math.Abs(guess/c.measured - 1)
		errors += off
		if off <= 0.25 {
			near++
		}
		if c.measured >= guess/width && c.measured <= guess*width {
			held++
		}
		if guess/width >= pays && c.measured < 1 {
			t.Errorf("%v to %v: at least %.2f is promised, and %.2f was measured", c.from, c.to, guess/width, c.measured)
		}
		if programs[c.to.program] = true; c.from.ranks == 1 {
			single, singles = single+off, singles+1
			cells[c.to] = fmt.Sprintf("%.2f/%.2f", c.measured, guess)
		}
	}
	n, waits := float64(len(busy)), map[string]bool{}
	if errors/n > 0.1 || float64(near) < 0.95*n || float64(held) < 0.9*n {
		t.Errorf("of %v cases: mean error %.3f, %d within 25 %%, %d in the interval", n, errors/n, near, held)
	}
	for _, c := range idle {
		low := c.predicted(keep) * waiting
		if waits[c.to.program] = true; c.measured < low {
			t.Errorf("%v to %v: at least %.2f is promised, and %.2f was measured", c.from, c.to, low, c.measured)
		}
		if c.from.ranks == 1 {
			cells[c.to] = fmt.Sprintf("%.2f/≥%.2f", c.measured, low)
		}
	}
	text := "|program|SM active/DRAM|2 ranks|4 ranks|8 ranks|\n|-|-|-|-|-|\n" + table(all, cells) +
		fmt.Sprintf("\nOf %d changes from 1, 2 and 4 ranks of %d programs: mean error %.0f %% (from one rank "+
			"%.0f %%), %d within 25 %%, %d in their interval. Of %d changes of %d that wait, none below its bound.\n",
			len(busy), len(programs), 100*errors/n, 100*single/float64(singles), near, held, len(idle), len(waits))
	made := regexp.MustCompile(`(?s)(<!-- made: packing -->\n).*?(<!-- made -->)`)
	const page = "../../../docs/packing.md"
	content, err := os.ReadFile(page)
	if err != nil || !made.Match(content) {
		t.Fatal("no table to compare", err)
	}
	golden.Compare(t, page, made.ReplaceAllString(string(content), "${1}"+text+"${2}"))
}

// The recorder's figures of a window of three seconds, of which it has two samples or one, are GPM's of the whole.
func TestTheRecorderAgreesWithGPM(t *testing.T) {
	content := must.Get(os.ReadFile("testdata/packing-h200x4.txt"))(t)
	var off []float64
	both := regexp.MustCompile(`(?m)^pack .* gpm (\S+) \S+ (\S+) .* own (\S+) (\S+) `)
	lines := both.FindAllStringSubmatch(string(content), -1)
	for _, m := range lines {
		for i := 1; i <= 2; i++ {
			gpm, err1 := strconv.ParseFloat(m[i], 64)
			own, err2 := strconv.ParseFloat(m[i+2], 64)
			if err1 != nil || err2 != nil {
				t.Fatalf("%q", m[0])
			}
			if gpm >= 5 { // GPM's figures have one digit after the point
				off = append(off, math.Abs(own/gpm-1))
			}
		}
	}
	slices.Sort(off)
	if n := len(off); len(lines) != 108 || off[n/2] > 0.005 || off[n*94/100] > 0.05 {
		t.Errorf("%d lines, %d figures: half of them differ by %.4f, 94 %% by %.4f", len(lines), n, off[n/2], off[n*94/100])
	}
}

// table has a line for each program, with what is said of 2, 4 and 8 ranks.
func table(all trials, cells map[trial]string) string {
	var lines []string
	for one, m := range all {
		if one.ranks == 1 {
			said := func(share string, n int) string { return cells[trial{one.gpu, one.program, share, n}] }
			lines = append(lines, fmt.Sprintf("|%s|%.0f/%.0f|%s|%s|%s|\n", one.program, m.active, m.dram,
				said("none", 2), said("none", 4), said("overlap:2", 8)))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// What is promised of the programs that were measured is true in 95 % of the cases, by the parameters as they are, and
// no promise is followed by a loss. From one rank, more ranks of most programs are promised.
func TestPromises(t *testing.T) {
	all, promised, programs, wrong := read(t), 0, 0, 0
	for from, m := range all {
		if from.share != "none" || from.ranks > 4 {
			continue
		}
		g := used(m.gr, m.active, m.dram, 1000*from.ranks, from.ranks)
		p := Job{Report{Begin: began, Share: "overlap:2", GPUs: []GPU{g}}}.Packing()
		if p.Ranks == 0 {
			continue
		}
		promised++
		if from.ranks == 1 {
			programs++
		}
		to := trial{from.gpu, from.program, "none", p.Ranks}
		if p.Ranks > maxUncapped {
			to.share = "overlap:2"
		}
		measured := all[to].rate / m.rate
		if measured < p.Low || p.High > 0 && measured > p.High {
			wrong++
			t.Logf("%v: %s, and %.2f was measured", from, p.Why, measured)
		}
		must.Hold(t, measured >= 1, "%v: %s, and there is a loss, %.2f", from, p.Why, measured)
	}
	must.Hold(t, programs >= 20 && 20*wrong <= promised,
		"of %d programs more ranks are promised to pay; of %d promises %d are wrong", programs, promised, wrong)
}

func TestPacking(t *testing.T) {
	short := used(90, 20, 5, 14000, 1)
	short.Samples = short.Samples[:3]
	const capped, none = "overlap:2", "none"
	of := func(share string, gpus ...GPU) Report { return Report{Share: share, GPUs: gpus} }
	bare := func(gpus ...GPU) Report { return Report{NoMPS: true, GPUs: gpus} }
	for name, c := range map[string]struct {
		r    Report
		want Packing // without Why
		why  string
	}{
		"pays": {of(capped, used(96, 31, 12, 14336, 1)),
			Packing{Now: 1, Fits: 9, Ranks: 4, Gain: 2.7, Low: 2.2, High: 3.5},
			"31 % of the SMs, 14 of 140 GiB: 9 ranks fit on a GPU; " +
				"4 ranks a GPU: 2.7 times the present throughput (2.2 to 3.5)."},
		"pays, as far as it fits": {of(capped, used(96, 31, 12, 40000, 1)),
			Packing{Now: 1, Fits: 3, Ranks: 3, Gain: 2.4, Low: 1.9, High: 3}, "3 ranks fit on a GPU; 3 ranks a GPU"},
		"several present ones": {of(capped, used(96, 50, 12, 14336, 2)),
			Packing{Now: 2, Fits: 18, Ranks: 8, Gain: 1.9, Low: 1.5, High: 2.4}, "8 ranks a GPU: 1.9 times"},
		"the memory's bandwidth": {of(capped, used(96, 31, 60, 14336, 1)),
			Packing{Now: 1, Fits: 9, Ranks: 2, Gain: 1.4, Low: 1.1, High: 1.8},
			"31 % of the SMs, 60 % of the memory's bandwidth, 14 of 140 GiB: 9 ranks fit on a GPU; 2 ranks"},
		"waits": {of(capped, used(40, 3, 1, 2000, 1)), Packing{Now: 1, Fits: 48, Ranks: 8, Low: 4.9},
			"8 ranks a GPU: at least 4.9 times the present throughput, if each has a processor core of its own"},
		"waits, no share": {of(none, used(40, 3, 1, 2000, 1)), Packing{Now: 1, Fits: 48, Ranks: 4, Low: 2.5},
			"4 ranks a GPU: at least 2.5"},
		"without MPS": {bare(used(40, 3, 1, 2000, 1)), Packing{Now: 1, Fits: 48, Ranks: 4, Low: 2.5}, "4 ranks a"},
		"in turns":    {bare(used(40, 3, 1, 2000, 2)), Packing{Now: 2, Fits: 48}, "the present 2 take turns without"},
		"between": {of(capped, used(99, 76, 32, 14336, 1)), Packing{Now: 1, Fits: 9},
			"9 ranks fit on a GPU, and more are not known to pay."},
		"as measured": {of(capped, used(99, 30, 32, 14336, 8)), Packing{Now: 8, Fits: 48},
			"more than 8 with this share were not measured: try mps-tune."},
		"memory full": {of(capped, used(50, 20, 12, 140000, 8)), Packing{Now: 8, Fits: 8},
			"137 of 140 GiB of memory: no more ranks fit."},
		"places full": {of(capped, used(50, 20, 12, 1000, 48)), Packing{Now: 48, Fits: 48}, "are as many as MPS"},
		"idle":        {of(capped, used(0.2, 0, 0, 1000, 1)), Packing{Now: 1, Fits: 48}, "present ones had no work."},
		"before Hopper": {of(capped, used(30, Unknown, Unknown, 14336, 1)), Packing{Now: 1, Fits: 9},
			"SM util 30 %, 14 of 140 GiB: 9 ranks fit on a GPU; no figure"},
		"the busier GPU counts, and the fuller": {of(capped, used(99, 20, 5, 70000, 4), used(99, 95, 5, 14000, 4)),
			Packing{Now: 4, Fits: 7}, "95 % of the SMs, 14 of 140 GiB: 7 ranks fit on a GPU, and more"},
		"a short job": {of(capped, short), Packing{}, "less than a minute"},
		"no process":  {of(capped, used(0, 0, 0, 500, 0)), Packing{}, "No process was seen"},
		"MIG":         {of(capped, used(Unknown, Unknown, Unknown, 14000, 4)), Packing{}, "is not known"},
		"no memory":   {of(capped, used(30, 20, 20, 0, 4)), Packing{}, "is not known"},
		"no GPU":      {of(capped), Packing{}, "No process was seen"},
		"a part": {Report{Part: quarter, GPUs: []GPU{used(40, 3, 1, 2000, 1)}}, Packing{},
			"a part of a GPU"},
		"whole, beside others": {of(capped, GPU{Others: 1}), Packing{}, "a part of a GPU"},
	} {
		c.r.Begin = began
		got := Job{c.r}.Packing()
		must.Hold(t, strings.Contains(got.Why, c.why), "%s: %q, want %q", name, got.Why, c.why)
		round := func(x float64) float64 { return math.Round(x*10) / 10 }
		got = Packing{got.Now, got.Fits, got.Ranks, round(got.Gain), round(got.Low), round(got.High), "", ""}
		must.Equal(t, name, got, c.want)
	}
}

// More ranks never lose by the queue, and they gain at most what the busiest part of the GPU leaves.
func TestQueue(t *testing.T) {
	for percent := 0.0; percent <= 100; percent += 5 {
		for now := 1; now <= 8; now++ {
			d, last := demandOf(percent, now), 1.0
			for n := now; n <= 8; n++ {
				g := queue(d, n) / queue(d, now)
				must.Hold(t, g >= last-1e-9 && g <= min(float64(n)/float64(now), 100/percent)+0.001,
					"%v %% of %d ranks: %d gain %v", percent, now, n, g)
				last = g
			}
		}
	}
}

// The sentence stands in the verdict and among the advice of a job that used its GPU for long.
func TestPackingIsPrintedUnasked(t *testing.T) {
	r := Report{Begin: began, End: after(9), Share: "overlap:2", GPUs: []GPU{used(96, 31, 12, 14336, 1)},
		Totals: Totals{Counts: lease.Counts{ClientsSeen: 1}}, Clients: []Client{{End: began, Exit: InOrder}}}
	j := Job{r}.Judge(after(9))
	must.Hold(t, j.Advice == j.Packing.Why && j.Packing.Ranks == 4, "advice %q, packing %+v", j.Advice, j.Packing)
	must.Equal(t, "verdict", j.Verdict, "The client ended in order, and 4 ranks a GPU would do 2.7 times the work.")
}
