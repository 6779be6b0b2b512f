// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// goldens is an archive of what the commands print: COMMAND/CASE.
const goldens = "testdata/golden.txtar"

// reported is a job of an hour and a quarter on two GPUs.
func reported() usage.Report {
	began := time.Date(2026, 3, 12, 14, 0, 0, 0, time.Local)
	at := func(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }
	r := usage.Report{
		Schema: usage.Schema, Job: 4711, Node: "gpu01", Name: "relax", User: "hpc1", Partition: "gpu", Rule: "ensembles",
		Share: "overlap:2", Begin: began, End: at(75),
		Totals: usage.Totals{Counts: lease.Counts{ClientsSeen: 9, ClientsPeak: 8, Pauses: 2, PausedMillis: 1340}, BadEnds: 5, EnergyJ: 2952000},
		Clients: []usage.Client{
			{PID: 4301, Rank: 2, Step: "0", Program: "lmp", SMs: 66, Begin: at(1), End: at(31), Exit: "signal 9",
				Ending: usage.InFlight, Unharmed: 3},
			{PID: 4302, Rank: -1, Program: "cuda-client", SMs: 33, Begin: at(1), End: at(75), Exit: usage.InOrder,
				Ending: usage.Ended},
			{PID: 4303, Rank: 1, Step: "1", Program: "python3", SMs: 66, Begin: at(32), End: at(60), Exit: "status 1",
				Ending: usage.Faulted},
			{PID: 4304, Rank: 5, Step: "2", Program: "python3", SMs: 66, Begin: at(61), End: at(74), Exit: "signal 15",
				Ending: usage.InFlight, Unharmed: 1},
			{PID: 4305, Rank: 4, Step: "2", Program: "python3", SMs: 66, Begin: at(61), End: at(73), Exit: "signal 15",
				Ending: usage.Ended},
			{PID: 4306, Rank: 3, Step: "2", Program: "python3", SMs: 66, Begin: at(61), End: at(72), Exit: "status 1",
				Ending: usage.Ended},
			{PID: 4307, Rank: -1, Step: "batch", Program: "nvtop", SMs: 0, Begin: at(1), End: at(75), Ending: usage.AtEpilog},
		},
		Faults: []usage.Fault{{At: at(60), GPU: 1, PID: 4303}},
	}
	for n, figures := range []usage.Sample{{SMUtil: 96, SMActive: 31, DRAM: 12, UsedMiB: 14336, Clients: 4},
		{SMUtil: 90.4, SMActive: 28, DRAM: -1, UsedMiB: 9000, Clients: 4}} {
		g := usage.GPU{Index: n, UUID: gpu0, Name: "NVIDIA H200", SMs: 132, MemoryMiB: 143771, Source: "GPM",
			Resolution: 10, EnergyJ: 1476000}
		for minute := 1; minute <= 75; minute++ {
			figures.At = at(minute)
			g.Add(began, figures)
		}
		r.GPUs = append(r.GPUs, g)
	}
	return r
}

func TestReportGoldens(t *testing.T) {
	running := reported()
	running.End, running.Faults, running.Clients, running.BadEnds, running.EnergyJ = time.Time{}, nil,
		running.Clients[:1], 1, 0
	running.Clients[0].Ending, running.Clients[0].Unharmed = "", 0
	for n := range running.GPUs {
		running.GPUs[n].Samples, running.GPUs[n].EnergyJ = running.GPUs[n].Samples[:1], 0
		running.GPUs[n].Samples[0].SMActive = usage.Unknown
	}
	for name, r := range map[string]usage.Report{"ended": reported(), "running": running} {
		now := running.Begin.Add(90 * time.Second)
		text := reportText(answerOf([]usage.Report{r}, now), command.Screen{Columns: 80}, now)
		golden.CompareIn(t, goldens, "report/"+name+".txt", text)
		fitsColumns(t, text)
	}
	many := reported()
	for n := range 20 {
		many.Clients = append(many.Clients, usage.Client{PID: n, Step: fmt.Sprint(100 + n), Exit: "signal 11",
			End: many.Begin, Begin: many.Begin})
	}
	of := answerOf([]usage.Report{many}, many.End)
	text := reportText(of, command.Screen{Columns: 80}, many.End)
	if !strings.Contains(text, "\n20 incidents more: see --json.\n") ||
		strings.Count(text, "SIGSEGV") != maxIncidents-1 {
		t.Errorf("%s", text)
	}
}

func TestReportedJob(t *testing.T) {
	for _, c := range []struct {
		args []string
		own  string
		want string
		err  string
	}{
		{[]string{"7"}, "8", "7", ""}, {nil, "8", "8", ""}, {nil, "", "", ""},
		{[]string{"12_3"}, "", "12_3", ""}, {[]string{"12_0"}, "8", "12_0", ""},
		{[]string{"12_x"}, "", "", `cannot report job "12_x": it is neither a number nor`},
		{[]string{"12_"}, "", "", "neither a number"}, {[]string{"_3"}, "", "", "neither a number"},
		{[]string{"12+1"}, "", "", "neither a number"}, {[]string{"../12"}, "", "", "neither a number"},
		{[]string{""}, "", "", "neither a number"}, {[]string{"0"}, "", "", "neither a number"},
		{[]string{"4294967296"}, "", "", "neither a number"}, {[]string{"-1"}, "", "", "neither a number"},
	} {
		job, err := reportedJob(c.args, c.own)
		must.Hold(t, job == c.want && (err == nil) == (c.err == "") && (err == nil || strings.Contains(err.Error(), c.err)),
			"%q, %q: %q, %v", c.args, c.own, job, err)
	}
}

func TestListGoldens(t *testing.T) {
	one := reported()
	running := one
	running.Job, running.Name, running.End, running.BadEnds = 4712, "a-name-that-is-longer", time.Time{}, 0
	other := one
	other.User, other.Job = "hpc2-long-name", 4294967294
	for name, all := range map[string][]usage.Report{"list": {running, one}, "list-of-root": {running, other},
		"list-of-none": nil} {
		text := reportsText(all, command.Screen{Columns: 80})
		golden.CompareIn(t, goldens, "report/"+name+".txt", text)
		fitsColumns(t, text)
	}
}
