// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// healthy are the metrics of a healthy node with so many GPUs and running jobs.
func healthy(gpus, jobs int) []family {
	var n state.Node
	for range gpus {
		n.GPUs = append(n.GPUs, state.GPU{})
	}
	for id := range jobs {
		n.Jobs = append(n.Jobs, state.Job{ID: uint32(id + 1), Phase: state.Opened,
			Daemons: []state.Daemon{{State: state.Serves}}, Report: usage.Report{Job: uint32(id + 1)}})
	}
	return slices.Concat(nodeMetrics(n, nil), runningMetrics(n.Jobs), totals{}.families())
}

// series counts the series that Prometheus gets of such a node: all, and those with the label jobid.
func series(gpus, jobs int) (all, ofJobs int) {
	for _, f := range healthy(gpus, jobs) {
		for _, s := range f.samples {
			all++
			if slices.Contains(s.labels, "jobid") {
				ofJobs++
			}
		}
	}
	return all, ofJobs
}

// What a large site stores grows with its GPUs and its jobs alone: a job adds six series, and not one for each rank.
// The last row is a node with 24 jobs by shards.
func TestSeriesOfANode(t *testing.T) {
	for _, c := range []struct{ gpus, jobs, all, ofJobs int }{
		{0, 0, 15, 0}, {8, 0, 31, 0}, {8, 1, 37, 6}, {8, 8, 79, 48}, {8, 24, 175, 144},
	} {
		if all, ofJobs := series(c.gpus, c.jobs); all != c.all || ofJobs != c.ofJobs {
			t.Errorf("%d GPUs and %d jobs have %d series, %d of jobs; want %d and %d",
				c.gpus, c.jobs, all, ofJobs, c.all, c.ofJobs)
		}
	}
}

const scalePage = "../../docs/scale.md"

// The tables of docs/scale.md are those that the programs and the measurements give.
func TestThePageOfScale(t *testing.T) {
	page := e2e.Read(t, scalePage)
	for name, table := range map[string]string{"series": seriesTable(t), "crowd": crowdTable(t)} {
		made := regexp.MustCompile(`(?s)(<!-- made: ` + name + ` -->\n).*?(<!-- made -->)`)
		must.Have(t, len(made.FindAllString(page, -1)) == 1, "%s does not have one part %s", scalePage, name)
		page = made.ReplaceAllString(page, "${1}"+table+"${2}")
	}
	golden.Compare(t, scalePage, page)
}

// siteSizes are the numbers of nodes in the tables.
var siteSizes = []int{200, 1000, 10_000}

func seriesTable(t *testing.T) string {
	t.Helper()
	var table strings.Builder
	table.WriteString("| | a node | 200 nodes | 1,000 | 10,000 |\n|---|--:|--:|--:|--:|\n")
	row := func(name string, ofNode int) {
		fmt.Fprintf(&table, "| %s | %s |", name, thousands(ofNode))
		for _, nodes := range siteSizes {
			fmt.Fprintf(&table, " %s |", thousands(nodes*ofNode))
		}
		table.WriteString("\n")
	}
	for _, jobs := range []int{0, 8, 24} {
		all, _ := series(8, jobs)
		row(fmt.Sprintf("series, 8 GPUs, %d jobs", jobs), all)
	}
	all, ofJobs := series(8, 24)
	row("without `jobid`, any jobs", all-ofJobs)
	table.WriteString("| runs of the timer that start in a second | |")
	for _, nodes := range siteSizes {
		fmt.Fprintf(&table, " %s |", thousands(nodes/delaySeconds(t)))
	}
	_, ofOne := series(8, 1)
	fmt.Fprintf(&table, "\n\nEach job adds %d series for each of its nodes: 12,000 jobs a day on one node each are %s "+
		"new series a day.\n", ofOne, thousands(12_000*ofOne))
	return table.String()
}

// delaySeconds is the time over which the timer spreads the nodes.
func delaySeconds(t *testing.T) int {
	t.Helper()
	timer := e2e.Read(t, "../../site/etc/metrics.timer")
	m := regexp.MustCompile(`(?m)^RandomizedDelaySec=(\d+)s$`).FindStringSubmatch(timer)
	stays := strings.Contains(timer, "\nOnCalendar=minutely\n") && strings.Contains(timer, "\nFixedRandomDelay=yes\n")
	must.Have(t, m != nil && stays, "the timer does not spread the nodes over a minute:\n%s", timer)
	seconds, _ := strconv.Atoi(m[1])
	must.Have(t, seconds >= 1 && seconds <= 55, "the timer spreads the nodes over %d s of a minute", seconds)
	return seconds
}

// thousands writes a number with commas.
func thousands(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// crowded is a row of the measurement of many jobs on a node, as site/lab/bench writes it.
type crowded struct {
	Jobs       int            `json:"jobs"`
	Processes  map[string]int `json:"processes"`
	RSS        float64        `json:"rss_kib"`
	PSS        float64        `json:"pss_kib"`
	CPU        float64        `json:"cpu_ms_a_minute"`
	Switches   float64        `json:"switches_a_second"`
	Wall       []float64      `json:"metrics_wall_ms"`
	MetricsCPU []float64      `json:"metrics_cpu_ms"`
}

func crowdTable(t *testing.T) string {
	t.Helper()
	var rows []crowded
	for line := range strings.Lines(e2e.Read(t, "../../docs/measurements/guard-simulated.jsonl")) {
		var run struct {
			Crowd []crowded `json:"crowd"`
		}
		must.OK(t, json.Unmarshal([]byte(line), &run))
		rows = append(rows, run.Crowd...)
	}
	var table strings.Builder
	header := func(name, form string, of func(crowded) float64) {
		table.WriteString("| " + name + " |")
		for _, row := range rows {
			fmt.Fprintf(&table, " "+form+" |", of(row))
		}
		table.WriteString("\n")
	}
	header("jobs with an idle client, 4 GPUs", "%.0f", func(c crowded) float64 { return float64(c.Jobs) })
	table.WriteString("|---|" + strings.Repeat("--:|", len(rows)) + "\n")
	header("a run: wall, ms", "%.0f", func(c crowded) float64 { return median(t, c.Wall) })
	header("a run: processor, ms", "%.0f", func(c crowded) float64 { return median(t, c.MetricsCPU) })
	header("guards and recorders", "%.0f", func(c crowded) (sum float64) {
		for _, n := range c.Processes {
			sum += float64(n)
		}
		return sum
	})
	header("resident, MiB", "%.0f", func(c crowded) float64 { return c.RSS / 1024 })
	header("proportional, MiB", "%.0f", func(c crowded) float64 { return c.PSS / 1024 })
	header("processor, ms a minute", "%.0f", func(c crowded) float64 { return c.CPU })
	header("context switches a second", "%.1f", func(c crowded) float64 { return c.Switches })
	return table.String()
}

func median(t *testing.T, all []float64) float64 {
	t.Helper()
	must.Have(t, len(all) == 20, "%d values were measured, not 20", len(all))
	sorted := slices.Sorted(slices.Values(all))
	return (sorted[len(sorted)/2] + sorted[(len(sorted)-1)/2]) / 2
}

// The rule of docs/scale.md drops each series with a jobid, and no other.
func TestTheRuleThatDropsJobs(t *testing.T) {
	m := regexp.MustCompile(`source_labels: \[__name__, jobid\]\n +regex: (\S+)\n +action: drop\n`).
		FindStringSubmatch(e2e.Read(t, scalePage))
	must.Have(t, m != nil, "%s has no rule", scalePage)
	rule := regexp.MustCompile("^(?:" + m[1] + ")$") // as Prometheus anchors it
	dropped, kept := 0, 0
	for _, f := range healthy(8, 24) {
		for _, s := range f.samples {
			job := ""
			if i := slices.Index(s.labels, "jobid"); i >= 0 {
				job = s.labels[i+1]
			}
			if drops := rule.MatchString("slurm_mps_" + f.name + ";" + job); drops != (job != "") {
				t.Errorf("%s of job %q is dropped: %v", f.name, job, drops)
			} else if drops {
				dropped++
			} else {
				kept++
			}
		}
	}
	if all, ofJobs := series(8, 24); dropped != ofJobs || kept != all-ofJobs {
		t.Errorf("%d dropped and %d kept of %d", dropped, kept, all)
	}
}
