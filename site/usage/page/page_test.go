// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/usage/judge"
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
			UsedMiB: float64(34000 + 500*index), Clients: 4}
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
				DRAM: wave(i*3, 50, 30), UsedMiB: float64(50000 + i*97%20000)})
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
	if err := Write(&page, judge.Job{Report: r}, minute(12)); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

// reports are the reports of the browser tests.
var reports = map[string]func() usage.Report{
	"eight-ranks": eightRanks, "unknown-values": unknownValues, "running": runningJob,
	"nothing": func() usage.Report {
		return usage.Report{Schema: usage.Schema, Job: 4714, Node: "gpu01", User: "hpc1", Rule: "all"}
	},
}

// The page has the JSON of mpsctl report, with the table of figures and the texts of the ends.
func TestThePageHasTheReport(t *testing.T) {
	_, text, _ := strings.Cut(pageText(t, eightRanks()), `id="report">`)
	text, _, _ = strings.Cut(text, "</script>")
	var c contents
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	r := eightRanks()
	if c.Job != 4711 || c.Verdict != (judge.Job{Report: r}).Verdict() || len(c.GPUs[1].Samples) != 144 || len(c.Clients) != 8 || len(c.Figures) != len(usage.All) ||
		c.Means[0] != r.GPUs[0].Mean(r.Begin) {
		t.Errorf("%.600s", text)
	}
	if last := c.Clients[4]; last.Rank != 5 || last.EndText != "ended by signal 9 (SIGKILL)" || last.Lived != "GPU 1 had work, and its 3 neighbours lived on" {
		t.Errorf("%+v", last)
	}
}

// A page has a bounded size, because reports are bounded: here 8 GPUs, 5760 samples and 512 clients.
func TestTheLargestPage(t *testing.T) {
	page := pageText(t, large())
	t.Logf("%d bytes", len(page))
	if len(page) > 3<<19 {
		t.Errorf("%d bytes: want at most 1.5 MiB", len(page))
	}
}

// Text from a user cannot end the JSON, and no part of the page comes from another place. The browser tests check that
// the script shows it as text.
func TestAPageIsSafeToOpen(t *testing.T) {
	page := pageText(t, runningJob())
	for _, foreign := range []string{"<b>", "<i>", "src=", "href=", "url(", "@import", "https://", "innerHTML", "fetch(", "\u2028"} {
		if strings.Contains(page, foreign) {
			t.Errorf("the page contains %q", foreign)
		}
	}
	if n := strings.Count(page, "<script"); n != 2 {
		t.Errorf("the page has %d scripts", n)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestAPageThatCannotBeWritten(t *testing.T) {
	if err := Write(fullDisk{}, judge.Job{Report: eightRanks()}, minute(1)); err == nil || err.Error() != "cannot write the page of job 4711: no space left" {
		t.Errorf("%v", err)
	}
}
