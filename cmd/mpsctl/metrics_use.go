// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// maxUseSeries bounds the GPUs of running jobs in the metrics. No node has more, because a GPU that several jobs have
// counts once.
const maxUseSeries = 256

// reportsOf returns the reports of the running jobs that this user may read, and the GPUs that several jobs have, each
// once. A daemon that jobs share is no job.
func reportsOf(jobs []inspect.Job) (all []usage.Report, shared []usage.GPU) {
	for _, j := range jobs {
		if j.Report.Job == 0 || lease.IsShared(j.ID) {
			continue
		}
		all = append(all, j.Report)
		for _, g := range j.WholeGPUs {
			known := slices.ContainsFunc(shared, func(other usage.GPU) bool { return other.UUID == g.UUID })
			if !j.Report.Whole() && !known {
				shared = append(shared, g)
			}
		}
	}
	return all, shared
}

// jobTotals are the metrics of a running job.
var jobTotals = []struct {
	name, help string
	of         func(usage.Totals) float64
}{
	{"job_clients_seen", "Clients that a running job has had.",
		func(t usage.Totals) float64 { return float64(t.ClientsSeen) }},
	{"job_clients_peak", "Maximum number of clients of a running job at the same time.",
		func(t usage.Totals) float64 { return float64(t.ClientsPeak) }},
	{"job_bad_ends", "Clients of a running job that ended by a signal, with a status other than 0, or by a fatal GPU error.",
		func(t usage.Totals) float64 { return float64(t.BadEnds) }},
	{"job_energy_joules", "Energy of the GPUs of a running job since its begin, 0 if it is not known.",
		func(t usage.Totals) float64 { return float64(t.EnergyJ) }},
	{"job_pauses", "Times that the guard of a running job paused the ranks.",
		func(t usage.Totals) float64 { return float64(t.Pauses) }},
	{"job_paused_seconds", "Time of all pauses of a running job.",
		func(t usage.Totals) float64 { return float64(t.PausedMillis) / 1000 }},
}

// useMetrics returns the totals of running jobs, and the latest samples of their GPUs. A percentage that is not known
// has no series. The label is jobid, because Prometheus uses job for the name of a scrape. The samples of GPUs that
// several jobs have are those of no job.
func useMetrics(reports []usage.Report, shared []usage.GPU) []family {
	var families []family
	for _, f := range usage.Percentages {
		families = append(families, family{name: "gpu_" + f.Key + "_ratio", kind: "gauge",
			help: "In the latest sample of a running job, " + f.Means + "."})
	}
	memory := len(families)
	families = append(families, family{name: "gpu_memory_used_bytes", kind: "gauge",
		help: "Memory in use on the GPU of a running job."})
	var totals []family
	for _, t := range jobTotals {
		totals = append(totals, family{name: t.name, kind: "gauge", help: t.help})
	}
	addGPUs := func(gpus []usage.GPU, ofJob []string) {
		for _, g := range gpus {
			if len(g.Samples) == 0 || len(families[memory].samples) == maxUseSeries {
				continue
			}
			labels := append([]string{"gpu", strconv.Itoa(g.Index), "uuid", string(g.UUID)}, ofJob...)
			last := g.Samples[len(g.Samples)-1]
			for n, f := range usage.Percentages {
				if percent := f.Of(last); percent >= 0 {
					families[n].samples = append(families[n].samples, sample{labels, percent / 100})
				}
			}
			families[memory].samples = append(families[memory].samples, sample{labels, float64(last.UsedMiB) * (1 << 20)})
		}
	}
	addGPUs(shared, nil)
	for _, r := range reports {
		ofJob := []string{"jobid", strconv.FormatUint(uint64(r.Job), 10), "user", r.User, "partition", r.Partition}
		for n, t := range jobTotals {
			totals[n].samples = append(totals[n].samples, sample{ofJob, t.of(r.Totals)})
		}
		if r.Whole() {
			addGPUs(r.GPUs, ofJob)
		}
	}
	return append(families, totals...)
}
