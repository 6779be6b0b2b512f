// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

const log = `{"level":"info","program":"prolog","job":7,"step":"lease","ms":1}
{"level":"info","program":"epilog","job":7,"step":"summary","user":"hpc1","clients_seen":8,"clients_peak":8,"clients_at_epilog":0,"terminated":1,"faults":0,"seconds":10.5,"bad_ends":3,"energy_j":9000,"pauses":2,"paused_ms":1300,"closed":true}
{"level":"info","program":"epilog","job":8,"step":"summary","clients_seen":5,"clients_at_epilog":5,"terminated":5,"faults":1,"seconds":2,"closed":false}
{"level":"info","program":"epilog","job":8,"step":"summary","clients_seen":2,"clients_at_epilog":2,"terminated":2,"faults":1,"seconds":3,"closed":true}
{"step":"summary","job":10,"clients_seen":4,"clients_at_epilog":4,"terminated":0,"faults":0,"seconds":1,"closed":false}
{"step":"summary","job":10,"clients_seen":0,"clients_at_epilog":0,"terminated":0,"faults":0,"seconds":4,"closed":true}
{"step":"summary","job":11,"clients_seen":9,"closed":false}
{"level":"info","job":9,"msg":"\"step\":\"summary\""}
{"step":"summary", torn
`

func TestTotals(t *testing.T) {
	got, err := addUp(strings.NewReader(strings.Repeat("y", 200<<10) + "\n" + log))
	want := totals{3, 3, figures{
		"clients_seen": 8 + 5 + 4, "clients_at_epilog": 0 + 5 + 4, "terminated": 1 + 5, "faults": 1,
		"seconds": 10.5 + 3 + 4, "bad_ends": 3, "energy_j": 9000, "pauses": 2, "paused_ms": 1300,
	}}
	must.Hold(t, err == nil && reflect.DeepEqual(got, want), "%+v, want %+v, %v", got, want, err)
}

// The metrics are in Prometheus' text form. The module site/lab/bench lints this golden with Prometheus' own linter.
func TestText(t *testing.T) {
	n := state.Node{
		Jobs: []state.Job{{ID: 7, Phase: state.Opened, Daemons: []state.Daemon{{State: state.Serves}, {State: state.NoAnswer}}}},
		GPUs: []state.GPU{
			{Index: 0, UUID: site.UUID("GPU-a"), Held: true,
				Processes: []state.Process{{Kind: state.KindClient}, {Kind: "server"}, {Kind: state.KindClient}}},
			{Index: 1, UUID: site.UUID(`GPU-"b`)},
		},
		Incomplete: []string{"x"},
	}
	said := func(n state.Node, found []state.Finding, reports []usage.Report, ended totals) string {
		var jobs []state.Job
		for _, r := range reports {
			jobs = append(jobs, state.Job{ID: r.Job, Report: r})
		}
		return metricsText(slices.Concat(nodeMetrics(n, found), runningMetrics(jobs), ended.families()))
	}
	r := usage.Report{Job: 7,
		Totals: usage.Totals{Counts: lease.Counts{ClientsSeen: 9, ClientsPeak: 4, Pauses: 2, PausedMillis: 1300},
			BadEnds: 3, EnergyJ: 5000}, User: `a"b`, Partition: "gpu"}
	got := said(n, []state.Finding{{Kind: "server-fault"}}, []usage.Report{r}, totals{jobs: 3, figures: figures{"seconds": 1.5, "paused_ms": 250}})
	golden.Compare(t, "testdata/metrics.prom", got)
	if empty := said(state.Node{}, nil, nil, totals{}); !strings.Contains(empty, "slurm_mps_jobs{phase=\"open\"} 0\n") {
		t.Errorf("of a node without jobs:\n%s", empty)
	}
}

// Each job has its own totals, and a daemon that jobs share is no job.
func TestMetricsOfASharedGPU(t *testing.T) {
	var jobs []state.Job
	for _, id := range []uint32{7, 8, 0xf0000000} {
		jobs = append(jobs, state.Job{ID: id, Report: usage.Report{Job: id, Totals: usage.Totals{EnergyJ: 25}}})
	}
	got := metricsText(runningMetrics(jobs))
	for text, n := range map[string]int{"job_energy_joules{": 2, "4026531840": 0} {
		must.Hold(t, strings.Count(got, text) == n, "%s is not there %d times:\n%s", text, n, got)
	}
}

// A daemon that jobs have shared is no job in the totals.
func TestTotalsOfASharedDaemon(t *testing.T) {
	ended, err := addUp(strings.NewReader(`{"step":"summary","job":8,"daemon":"shared daemon 1","pauses":2,"closed":true}
{"step":"summary","job":8,"energy_j":25,"clients_seen":1,"closed":true}
`))
	must.Hold(t, err == nil && ended.jobs == 1 && ended.figures["pauses"] == 2 && ended.figures["energy_j"] == 25,
		"%+v, %v", ended, err)
}

// docs/reference.md has each metric.
func TestMetricsAreDocumented(t *testing.T) {
	text := must.Get(os.ReadFile("../../docs/reference.md"))(t)
	for _, f := range slices.Concat(nodeMetrics(state.Node{}, nil), runningMetrics(nil), totals{}.families()) {
		must.Hold(t, strings.Contains(string(text), "`slurm_mps_"+f.name+"`"), "docs/reference.md lacks slurm_mps_%s", f.name)
	}
}

// docs/reference.md has the table of figures as the code has it.
func TestFiguresAreDocumented(t *testing.T) {
	text := must.Get(os.ReadFile("../../docs/reference.md"))(t)
	var rows strings.Builder
	for _, f := range usage.All {
		key := "`" + f.Key + "`"
		if f.SummaryKey() != f.Key {
			key += "; `" + f.SummaryKey() + "` in the summary"
		}
		fmt.Fprintf(&rows, "| %s | %s | – | %s |\n", f.Name, key, f.Means)
	}
	if !strings.Contains(string(text), "|---|---|---|---|\n"+rows.String()) {
		t.Errorf("docs/reference.md lacks these rows:\n%s", rows.String())
	}
}
