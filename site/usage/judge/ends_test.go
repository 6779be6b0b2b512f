// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/slurm-mps/slurm-mps/site/usage"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

var began = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func after(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }

func TestHowAClientEnded(t *testing.T) {
	for _, c := range []struct {
		client Client
		text   string
		bad    bool
	}{
		{Client{}, "runs", false},
		{Client{End: began}, "ended (status not known)", false},
		{Client{End: began, Ending: InFlight}, "ended (status not known)", false},
		{Client{End: began, Exit: InOrder, Ending: InFlight}, "ended with status 0", false},
		{Client{End: began, Exit: "status 3"}, "ended with status 3", true},
		{Client{End: began, Exit: "signal 9", Ending: Ended}, "ended by signal 9 (SIGKILL)", true},
		{Client{End: began, Exit: "signal 99"}, "ended by signal 99", true},
		{Client{End: began, Exit: "status 1", Ending: Faulted}, "ended by a fatal GPU error", true},
		{Client{End: began, Ending: Faulted}, "ended by a fatal GPU error", true},
		{Client{End: began, Exit: "signal 9", Ending: AtEpilog}, "outlived the job, and was ended by the epilog", false},
	} {
		if text := EndText(c.client); text != c.text || bad(c.client) != c.bad {
			t.Errorf("%+v: %q, bad %v", c.client, text, bad(c.client))
		}
	}
}

// A normal end is no incident, also if the GPU had work then. The worst comes first, and clients that ended alike share
// a line. A client of two GPUs is one client.
func TestIncidents(t *testing.T) {
	r := Report{Begin: began, End: after(9), GPUs: []GPU{{Index: 4}, {Index: 6}}, Faults: []Fault{{At: after(5), GPU: 1,
		PID: 7}}, Clients: []Client{
		{PID: 1, Rank: 0, Step: "0", Program: "app", Begin: began, End: after(1), Exit: InOrder, Ending: InFlight,
			Unharmed: 3},
		{PID: 2, Rank: 3, Step: "0", Program: "app", Begin: began, End: after(2), Exit: "signal 9", Ending: InFlight,
			Unharmed: 2},
		{PID: 2, GPU: 1, Rank: 3, Step: "0", Program: "app", Begin: began, End: after(2), Exit: "signal 9",
			Ending: InFlight, Unharmed: 2},
		{PID: 3, Rank: 1, Step: "1", Begin: began, End: after(4), Exit: "signal 15"},
		{PID: 4, Rank: 0, Step: "1", Begin: began, End: after(3), Exit: "signal 15"},
		{PID: 5, Rank: -1, Step: "batch", Program: "sh", Begin: began, End: after(1), Ending: AtEpilog},
		{PID: 6, GPU: -1, Rank: -1, Program: "sh", Begin: began, End: after(1), Exit: "status 2", Ending: InFlight, Unharmed: 1},
		{PID: 7, GPU: 1, Rank: -1, Begin: began, End: after(5), Exit: "status 1", Ending: Faulted},
	}}
	var got []string
	for _, i := range (Job{r}).incidents() {
		got = append(got, i.Text)
	}
	want := []string{
		"GPU 6 had a fatal error, which ends all of its clients. The MPS server names pid 7; it can be a neighbour of the one that failed (compute-sanitizer shows which).",
		"pid 6 (sh) ended with status 2. Its GPU had work, and its neighbour lived on.",
		"rank 3 of step 0 (app, pid 2) ended by signal 9 (SIGKILL). GPU 4 or GPU 6 had work, and its 2 neighbours lived on.",
		"2 clients of step 1 ended by signal 15 (SIGTERM), rank 0 (pid 4) first.",
		"pid 5 of the batch script (sh) outlived the job, and was ended by the epilog.",
	}
	must.Hold(t, slices.Equal(got, want), "got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	held := Report{Begin: began, GPUs: []GPU{{}}, Clients: []Client{{PID: 2, Rank: -1, Begin: began, End: after(1),
		Exit: "signal 9"}}}
	text := (Job{held}).incidents()[0].Text
	must.Equal(t, "of a job that runs", text, "pid 2 ended by signal 9 (SIGKILL). It harms no other rank: there is nothing to do.")
}

func TestVerdict(t *testing.T) {
	well, bad := Client{End: began, Exit: InOrder}, Client{End: began, Exit: "signal 9"}
	room, busy := used(96, 31, 12, 14336, 1), used(99, 70, 40, 14000, 8)
	for want, r := range map[string]Report{
		"No client of MPS was seen.":                                    {},
		"The job ran without MPS, and no process was seen on its GPUs.": {NoMPS: true, GPUs: []GPU{room}},
		"The job ran without MPS, and SM active was 70 % on average.": {
			NoMPS: true, GPUs: []GPU{busy}, Totals: Totals{Counts: lease.Counts{ClientsSeen: 1}}, Clients: []Client{{}}},
		"All 2 clients ended in order, and 4 ranks a GPU would do 2.7 times the work.": {
			End: after(9), GPUs: []GPU{room}, Totals: Totals{Counts: lease.Counts{ClientsSeen: 2}}, Clients: []Client{well, well}},
		"1 of 2 clients ended badly, and SM active was 70 % on average.": {
			End: after(9), GPUs: []GPU{busy}, Totals: Totals{Counts: lease.Counts{ClientsSeen: 2}, BadEnds: 1}, Clients: []Client{well, bad}},
		"1 of 1 client ended badly, with 1 fatal GPU error.": {
			End: after(9), Totals: Totals{Counts: lease.Counts{ClientsSeen: 1}, BadEnds: 1}, Clients: []Client{bad}, Faults: []Fault{{}}},
		"No client has ended badly.":              {Totals: Totals{Counts: lease.Counts{ClientsSeen: 1}}, Clients: []Client{{}}},
		"The client ended in order.":              {End: after(9), Totals: Totals{Counts: lease.Counts{ClientsSeen: 1}}, Clients: []Client{well}},
		"No client is known to have ended badly.": {End: after(9), Totals: Totals{Counts: lease.Counts{ClientsSeen: 2}}, Clients: []Client{well}},
	} {
		r.Begin = began
		if got := (Job{r}).Verdict(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestSharesAndHours(t *testing.T) {
	r := Report{Begin: began, End: after(90), GPUs: []GPU{{SMs: 132}, {SMs: 132}}, Clients: []Client{{SMs: 66}, {SMs: -1}}}
	must.Equal(t, "one share", (Job{r}).Shares(), "66 SMs")
	r.Clients = append(r.Clients, Client{SMs: 0, GPU: 1}, Client{SMs: 16})
	must.Equal(t, "several shares", (Job{r}).Shares(), "16 to 132 SMs")
	must.Equal(t, "no client", (Job{}).Shares(), "")
	must.Equal(t, "ended", (Job{r}).GPUHours(after(1000)), 3)
	if r.End = (time.Time{}); (Job{r}).GPUHours(after(30)) != 1 {
		t.Errorf("runs: %v hours", Job{r}.GPUHours(after(30)))
	}
}

func TestEnergyText(t *testing.T) {
	for joules, want := range map[int]string{0: "-", 360: "0.1 Wh", 35999: "10.0 Wh", 36000: "10 Wh", 3599999: "1000 Wh",
		3600000: "1.0 kWh"} {
		must.Equal(t, fmt.Sprintf("%d J", joules), Energy(joules), want)
	}
}
