// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

const (
	gpu0 = site.UUID("GPU-aaaaaaaa-0000-0000-0000-000000000001")
	gpu1 = site.UUID("GPU-bbbbbbbb-0000-0000-0000-000000000002")
	mig0 = site.UUID("MIG-cccccccc-0000-0000-0000-000000000003")
)

var reportBegin = time.Date(2026, 3, 12, 14, 0, 0, 0, time.UTC)

func minute(minutes float64) time.Time {
	return reportBegin.Add(time.Duration(minutes * float64(time.Minute)))
}

// wave is a percentage that goes up and down around a mean. It is the same in each run.
func wave(i int, mean, by float64) float64 {
	v := mean + by*math.Sin(float64(i)/3) + by/2*math.Sin(float64(i)*1.7)
	return math.Round(10*min(v, 100)) / 10
}

// gpuOf is an H200 with a sample every half minute until the end in minutes.
func gpuOf(index int, uuid site.UUID, end float64) usage.GPU {
	g := usage.GPU{Index: index, UUID: uuid, Name: "NVIDIA H200", SMs: 132, MemoryMiB: 143771, Source: "GPM",
		EnergyJ: 1476000}
	for i := range int(2 * end) {
		s := usage.Sample{At: minute(float64(i+1) / 2), SMUtil: wave(i, 88, 9), SMActive: wave(i, 66, 12), DRAM: wave(i, 31, 8),
			UsedMiB: 34000 + 500*index, Clients: 4}
		if i < 3 {
			s.SMUtil, s.SMActive, s.DRAM, s.UsedMiB = 4, 1, 0.5, 9000
		}
		g.Samples = append(g.Samples, s)
	}
	return g
}

// eightRanks is a job of eight ranks on two GPUs. One rank was killed with work in flight.
func eightRanks() usage.Report {
	r := usage.Report{
		Schema: usage.Schema, Job: 4711, Node: "gpu01", User: "hpc1", Partition: "gpu", Account: "proteins", Rule: "ensembles",
		Share: "even", Begin: minute(0), End: minute(72), Name: "relax",
		Totals: usage.Totals{Counts: lease.Counts{ClientsSeen: 8, ClientsPeak: 8}, BadEnds: 1, EnergyJ: 2952000},
		GPUs:   []usage.GPU{gpuOf(0, gpu0, 72), gpuOf(1, gpu1, 72)},
	}
	for i := range 8 {
		rank := i ^ 1 // not in the order in which they began
		c := usage.Client{PID: 4301 + i, GPU: rank % 2, Rank: rank, Step: "0", SMs: 32 + rank/4*2, LimitMiB: 35000, PeakMiB: 8100 + 37*rank,
			Begin: minute(0.4 + 0.01*float64(i)), End: minute(70 + 0.2*float64(i)), Program: "lmp", Exit: usage.InOrder,
			Ending: usage.Ended}
		if rank == 5 {
			c.End, c.Exit, c.Ending, c.Unharmed = minute(31.3), "signal 9", usage.InFlight, 3
		}
		r.Clients = append(r.Clients, c)
	}
	return r
}

// unknownValues is a report with as few values as possible: only process utilisation, no times, no ranks.
func unknownValues() usage.Report {
	return usage.Report{
		Schema: usage.Schema, Job: 4712, Node: "gpu01", User: "hpc1", Rule: "all", Begin: minute(0), End: minute(3),
		Totals: usage.Totals{Counts: lease.Counts{ClientsSeen: 4, ClientsPeak: 2}},
		GPUs: []usage.GPU{
			{Index: 2, UUID: gpu0, Name: "NVIDIA A30", SMs: 56, MemoryMiB: 24576, Source: "process utilization", Samples: []usage.Sample{
				{At: minute(1), SMUtil: 40, SMActive: -1, DRAM: -1, UsedMiB: 2000}, {At: minute(2), SMUtil: -1, SMActive: -1, DRAM: -1, UsedMiB: 0},
				{At: minute(3), SMUtil: 100, SMActive: -1, DRAM: -1, UsedMiB: 24576}}},
			{Index: 3, UUID: mig0, Name: "NVIDIA A30 MIG 1g.6gb"},
		},
		Clients: []usage.Client{
			{PID: 100, GPU: 0, Rank: -1}, {PID: 101, GPU: 0, Rank: -1, Begin: minute(1)}, {PID: 102, GPU: 0, Rank: 7, End: minute(2)},
			{PID: 103, GPU: 9, Rank: 0, Step: "interactive"},
		},
	}
}

// runningJob is a job that still runs. Each of its clients has a different end, and one ended with a fatal GPU error.
func runningJob() usage.Report {
	r := usage.Report{
		Schema: usage.Schema, Job: 4713, Node: "gpu01", User: `<script>alert("user")</script>`, Rule: "all", Share: "overlap:2",
		Begin: minute(0), Totals: usage.Totals{Counts: lease.Counts{ClientsSeen: 900, ClientsPeak: 6}}, GPUs: []usage.GPU{gpuOf(0, gpu0, 12)},
		Faults: []usage.Fault{{At: minute(8), PID: 203}},
	}
	for i, ending := range []usage.Ending{"", usage.Ended, usage.InFlight, usage.Faulted, usage.AtEpilog} {
		c := usage.Client{PID: 200 + i, Rank: i, Step: "\u202e<b>" + strings.Repeat("x", 200), Begin: minute(1), End: minute(4 + float64(i)), Ending: ending}
		switch ending {
		case "":
			c.End = time.Time{}
		case usage.InFlight:
			c.Exit, c.Program = "status 3", "<i>\u202e"
		case usage.Ended:
			c.Exit = usage.InOrder
		}
		r.Clients = append(r.Clients, c)
	}
	return r
}

// large is the largest possible report, of eight GPUs.
func large() usage.Report {
	r := eightRanks()
	r.GPUs = nil
	for g := range 8 {
		one := gpuOf(g, gpu0, 0)
		for i := range usage.MaxSamples {
			one.Samples = append(one.Samples, usage.Sample{At: minute(float64(i) / 10), SMUtil: wave(i, 50, 30), SMActive: wave(i*7, 50, 30),
				DRAM: wave(i*3, 50, 30), UsedMiB: 50000 + i*97%20000})
		}
		r.GPUs = append(r.GPUs, one)
	}
	r.Clients = nil
	for i := range usage.MaxClients {
		r.Clients = append(r.Clients, usage.Client{PID: 4000000 + i, GPU: i % 8, Rank: i, Step: strings.Repeat("<&", 100), SMs: 18, LimitMiB: 17000,
			PeakMiB: 16000 + i, Begin: minute(float64(i) / 10), End: minute(20 + float64(i)/10),
			Program: strings.Repeat("<", 15), Exit: "signal 15", Ending: usage.InFlight, Unharmed: 47})
	}
	for range usage.MaxFaults {
		r.Faults = append(r.Faults, usage.Fault{At: minute(40), PID: 4000001})
	}
	r.ClientsSeen = 100000
	return r
}

func pageText(t *testing.T, r usage.Report) string {
	t.Helper()
	var page bytes.Buffer
	if err := Write(&page, r); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

// reports are the reports of the golden files and of the browser tests.
var reports = map[string]func() usage.Report{
	"eight-ranks": eightRanks, "unknown-values": unknownValues, "running": runningJob,
	"nothing": func() usage.Report {
		return usage.Report{Schema: usage.Schema, Job: 4714, Node: "gpu01", User: "hpc1", Rule: "all"}
	},
}

func TestGoldens(t *testing.T) {
	for name, report := range reports {
		t.Run(name, func(t *testing.T) {
			golden.Compare(t, filepath.Join("testdata", name+".html"), pageText(t, report()))
		})
	}
}

// A page has a bounded size, because reports are bounded: here 8 GPUs, 5760 samples and 512 clients.
func TestTheLargestPage(t *testing.T) {
	page := pageText(t, large())
	t.Logf("%d bytes", len(page))
	if len(page) > 1<<20 {
		t.Errorf("%d bytes: want at most 1 MiB", len(page))
	}
	if n := strings.Count(page, `class="bar"`); n != usage.MaxClients {
		t.Errorf("%d lanes, want %d", n, usage.MaxClients)
	}
}

// Text from a user is shown as text, and no part of the page comes from another place.
func TestAPageIsSafeToOpen(t *testing.T) {
	page := pageText(t, runningJob())
	for _, foreign := range []string{"<script", "<b>", "<i>", "\u202e", "src=", "href=", "url(", "@import", "http://",
		"https://"} {
		if strings.Contains(page, foreign) {
			t.Errorf("the page contains %q", foreign)
		}
	}
	for _, text := range []string{"&lt;script&gt;", "·&lt;b&gt;xxx"} {
		if !strings.Contains(page, text) {
			t.Errorf("the page lacks %q", text)
		}
	}
}

func TestOutcomes(t *testing.T) {
	for want, r := range map[string]usage.Report{
		"In 1 h 12 min, 8 clients used 2 GPUs and at most 33.7 of 140.4 GiB of a GPU's memory.":        eightRanks(),
		"In 3 min, 4 clients used 2 GPUs and at most 24.0 of 24.0 GiB of a GPU's memory.":              unknownValues(),
		"In the first 12 min, 900 clients used 1 GPU and at most 33.2 of 140.4 GiB of a GPU's memory.": runningJob(),
		"No client of MPS was seen.": {},
	} {
		if got := outcome(r, axisOf(r)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", -time.Second: "0 s", 400 * time.Millisecond: "0 s", 59 * time.Second: "59 s", 90 * time.Second: "1 min 30 s",
		59*time.Minute + 59*time.Second: "59 min 59 s", 2*time.Hour + 29*time.Second: "2 h", 26*time.Hour + 3*time.Minute: "1 d 2 h",
	} {
		if got := lasting(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

// The ticks of an axis are few, begin at 0 and are inside the figure, for a job of any length.
func TestTicks(t *testing.T) {
	for lasts := time.Duration(0); lasts < 400*24*time.Hour; lasts = lasts*5/4 + time.Second {
		ticks := timeAxis{reportBegin, reportBegin.Add(lasts)}.ticks()
		if len(ticks) < 1 || len(ticks) > maxTicks+1 || ticks[0] != (axisTick{timeLeft, "0 s"}) || ticks[len(ticks)-1].X > timeRight {
			t.Errorf("%v: %v", lasts, ticks)
		}
	}
}

// The page's mean is that of mpsctl report: each sample counts for its time, and unknown samples do not count.
func TestAMeanIsOverTime(t *testing.T) {
	g := usage.GPU{Samples: []usage.Sample{
		{At: minute(1), SMUtil: 100, DRAM: usage.Unknown}, {At: minute(4), SMUtil: 20, DRAM: usage.Unknown},
		{At: minute(10), SMUtil: usage.Unknown, DRAM: usage.Unknown},
	}}
	for _, f := range usage.Percentages {
		want := map[string]measure{"sm_util": {true, 40, 100}, "sm_active": {true, 0, 0}, "dram": {false, usage.Unknown, 0}}[f.Key]
		if got := measureOf(minute(0), g, f); got != want {
			t.Errorf("%s: %v, want %v", f.Key, got, want)
		}
	}
	if got := measureOf(time.Time{}, usage.GPU{Samples: g.Samples[:1]}, usage.Percentages[1]); got != (measure{true, 100, 100}) {
		t.Errorf("%v without a begin", got)
	}
	if measureOf(minute(0), usage.GPU{}, usage.MemoryUsed).known {
		t.Error("memory is known without a sample")
	}
}

func TestAnUnknownSampleIsAGap(t *testing.T) {
	samples := []usage.Sample{{At: minute(1), SMUtil: 0}, {At: minute(2), SMUtil: -1}, {At: minute(3), SMUtil: 1}}
	path := stepsOf(minute(0), samples, timeAxis{minute(0), minute(3)}, func(s usage.Sample) (px, bool) { return px(s.SMUtil), s.SMUtil >= 0 }, 9)
	third := (timeRight - timeLeft) / 3
	if want := fmt.Sprintf("M%v 9V0H%vV9ZM%v 9V1H%vV9Z", timeLeft, timeLeft+third, timeLeft+2*third, timeRight); path != want {
		t.Errorf("%s, want %s", path, want)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestAPageThatCannotBeWritten(t *testing.T) {
	if err := Write(fullDisk{}, eightRanks()); err == nil || err.Error() != "cannot write the page of job 4711: no space left" {
		t.Errorf("%v", err)
	}
}
