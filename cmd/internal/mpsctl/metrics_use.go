// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"strconv"

	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// maxUseSeries bounds the GPUs of running jobs in the metrics. A GPU has one job, so no node has more.
const maxUseSeries = 256

// reportsOf returns the reports of the running jobs that this user may read.
func reportsOf(jobs []inspect.Job) (all []usage.Report) {
	for _, j := range jobs {
		if j.Report.Job > 0 {
			all = append(all, j.Report)
		}
	}
	return all
}

// jobTotals are the metrics of a running job.
var jobTotals = []struct {
	name, help string
	of         func(usage.Totals) float64
}{
	{"job_clients_seen", "Clients that a running job has had.", func(t usage.Totals) float64 { return float64(t.ClientsSeen) }},
	{"job_clients_peak", "Maximum number of clients of a running job at the same time.", func(t usage.Totals) float64 { return float64(t.ClientsPeak) }},
	{"job_pauses", "Times that the guard of a running job paused the ranks.", func(t usage.Totals) float64 { return float64(t.Pauses) }},
	{"job_paused_seconds", "Time of all pauses of a running job.", func(t usage.Totals) float64 { return float64(t.PausedMillis) / 1000 }},
}

// useMetrics returns the totals of running jobs, and the latest samples of their GPUs. A percentage that is not known
// has no series. The label is jobid, because Prometheus uses job for the name of a scrape.
func useMetrics(reports []usage.Report) []family {
	families := []family{
		{name: "gpu_sm_util_ratio", kind: "gauge", help: "Part of the time in which a kernel was on the GPU of a running job."},
		{name: "gpu_sm_active_ratio", kind: "gauge", help: "Part of the SMs that had work, averaged over the time since the last sample."},
		{name: "gpu_dram_ratio", kind: "gauge", help: "Part of the memory's bandwidth that was used."},
		{name: "gpu_memory_used_bytes", kind: "gauge", help: "Memory in use on the GPU of a running job."},
	}
	var totals []family
	for _, t := range jobTotals {
		totals = append(totals, family{name: t.name, kind: "gauge", help: t.help})
	}
	for _, r := range reports {
		ofJob := []string{"jobid", strconv.FormatUint(uint64(r.Job), 10), "user", r.User, "partition", r.Partition}
		for n, t := range jobTotals {
			totals[n].samples = append(totals[n].samples, sample{ofJob, t.of(r.Totals)})
		}
		for _, g := range r.GPUs {
			if len(g.Samples) == 0 || len(families[3].samples) == maxUseSeries {
				continue
			}
			labels := append([]string{"gpu", strconv.Itoa(g.Index), "uuid", string(g.UUID)}, ofJob...)
			last := g.Samples[len(g.Samples)-1]
			for n, percent := range []float64{last.SMUtil, last.SMActive, last.DRAM} {
				if percent >= 0 {
					families[n].samples = append(families[n].samples, sample{labels, percent / 100})
				}
			}
			families[3].samples = append(families[3].samples, sample{labels, float64(last.UsedMiB) * (1 << 20)})
		}
	}
	return append(families, totals...)
}
