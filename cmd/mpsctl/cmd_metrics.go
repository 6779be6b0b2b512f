// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl metrics: the present state of a node, and the totals of its ended jobs, in Prometheus' text
// form.
//
// The program keeps no state: counters of the epilog's would need a lock for which other epilogs wait. It reads the
// present state from the node, and adds up the totals from the log.

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/epilog"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
)

const metricsHelp = `metrics prints the metrics of this node in Prometheus' text form, for node_exporter's textfile collector. It has jobs,
daemons, clients and findings as mpsctl status has them, and totals of the jobs that have ended, from the summaries in the
log. When the log is rotated, the totals begin again, like those of a restarted program. The metrics of running jobs have
labels of the job, its user and its partition. If you are not root, you get no totals, and only your own jobs.

It asks each daemon for 2 s at most, takes 20 s at most for everything, and changes nothing. Parts that did not answer by
then are counted in slurm_mps_unanswered_daemons and slurm_mps_inspection_errors.

--out FILE writes the metrics into a file, which is complete or absent. Every folder of its path must belong to root, and
only root may write into it. No link is followed.

It exits with 0 if it could print, with 1 if it could not, and with 2 for a wrong flag.`

// lookTime bounds all reads. The unit that writes the metrics is ended after a minute, when the next one starts.
const lookTime = 20 * time.Second

func metricsCommand(call *command.Invocation) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "metrics", Short: "print this node's metrics for Prometheus", Long: metricsHelp,
		Example: "  mpsctl metrics\n  mpsctl metrics --out /var/lib/slurm-mps/metrics/slurm-mps.prom\n" +
			"  systemctl enable --now slurm-mps-metrics.timer",
		Args: command.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			node, found, err := look(call, "metrics", true, lookTime, state.Disagreements)
			if err != nil {
				return err
			}
			families := nodeMetrics(node, found)
			families = append(families, runningMetrics(node.Jobs)...)
			ended, err := readTotals(call.Paths.Log())
			switch {
			case err == nil:
				families = append(families, ended.families()...)
			case errors.Is(err, fs.ErrPermission) && !node.Root:
				call.PrintError("mpsctl", fmt.Errorf("%w: totals and other users' jobs are left out: run as root for them", err))
			default:
				return cli.RuntimeError{Err: err}
			}
			text := metricsText(families)
			if out != "" {
				err = replaceMetrics(out, text)
			} else {
				_, err = io.WriteString(call.Out, text)
			}
			return command.WriteError("metrics", err)
		},
	}
	c.Flags().StringVar(&out, "out", "", "write them into this `FILE`, in a folder that belongs to root")
	return c
}

// replaceMetrics writes the file into a folder that only root can have made. It replaces a link.
func replaceMetrics(path, text string) error {
	dir, err := osfile.OpenTrustedFolder(filepath.Dir(path))
	if err == nil {
		defer dir.Close()
		return osfile.File{Content: []byte(text), Mode: 0o644, Sync: true}.Write(dir, filepath.Base(path))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: make the folder: %s", err, words.Shell("mkdir", "-p", filepath.Dir(path)))
	}
	return err
}

// readTotals reads the log. A missing log is no failure, because no job has ended yet.
func readTotals(path string) (totals, error) {
	log, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return totals{}, nil
	}
	var ended totals
	if err == nil {
		defer log.Close()
		ended, err = addUp(log)
	}
	if err != nil {
		return totals{}, fmt.Errorf("cannot read totals: %w", err)
	}
	return ended, nil
}

type family struct {
	name, kind, help string
	samples          []sample
}

// sample is a value under its labels: name, value, name, value.
type sample struct {
	labels []string
	value  float64
}

func metricsText(families []family) string {
	var b strings.Builder
	for _, f := range families {
		fmt.Fprintf(&b, "# HELP slurm_mps_%s %s\n# TYPE slurm_mps_%[1]s %[3]s\n", f.name, f.help, f.kind)
		for _, s := range f.samples {
			fmt.Fprintf(&b, "slurm_mps_%s%s %v\n", f.name, labelled(s.labels), s.value)
		}
	}
	return b.String()
}

func labelled(labels []string) string {
	if len(labels) == 0 {
		return ""
	}
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	var pairs []string
	for i := 0; i < len(labels); i += 2 {
		pairs = append(pairs, labels[i]+`="`+escape.Replace(labels[i+1])+`"`)
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

func nodeMetrics(n state.Node, found []state.Finding) []family {
	jobs, daemons, findings := counts{string(state.Opened): 0}, counts{string(state.Serves): 0}, counts{}
	clients := family{name: "gpu_clients", kind: "gauge", help: "Clients of MPS on a GPU."}
	held := family{name: "gpu_allocated", kind: "gauge", help: "1 if a job has the GPU."}
	for _, j := range n.Jobs {
		jobs[string(j.Phase)]++
		for _, d := range j.Daemons {
			daemons[string(d.State)]++
		}
	}
	for _, g := range n.GPUs {
		labels, connected := []string{"gpu", fmt.Sprint(g.Index), "uuid", string(g.UUID)}, 0
		for _, p := range g.Processes {
			if p.Kind == state.KindClient {
				connected++
			}
		}
		clients.samples = append(clients.samples, sample{labels, float64(connected)})
		held.samples = append(held.samples, sample{labels, map[bool]float64{true: 1}[g.Held]})
	}
	for _, f := range found {
		findings[string(f.Kind)]++
	}
	return []family{
		{"jobs", "gauge", "Jobs that have something here, by phase.", jobs.samples("phase")},
		{"daemons", "gauge", "Control daemons of jobs, by state.", daemons.samples("state")},
		clients, held,
		{"findings", "gauge", "Differences between the node and its leases, by kind: mpsctl status prints what to do.",
			findings.samples("kind")},
		{"unanswered_daemons", "gauge", "Control daemons that did not answer in time, or that no time was left to ask.",
			[]sample{{nil, float64(daemons[string(state.NoAnswer)] + daemons[string(state.Alive)])}}},
		{"inspection_errors", "gauge", "Parts of the node that could not be read.",
			[]sample{{nil, float64(len(n.Incomplete))}}},
	}
}

type counts map[string]int

func (c counts) samples(label string) (all []sample) {
	for _, value := range slices.Sorted(maps.Keys(c)) {
		all = append(all, sample{[]string{label, value}, float64(c[value])})
	}
	return all
}

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

// runningMetrics returns the totals of running jobs that this user may read. The label is jobid, because Prometheus uses
// job for the name of a scrape. The use of a GPU is DCGM's: docs/operator.md has how to give its metrics the job.
func runningMetrics(jobs []state.Job) (totals []family) {
	for _, t := range jobTotals {
		totals = append(totals, family{name: t.name, kind: "gauge", help: t.help})
	}
	for _, j := range jobs {
		if j.Report.Job == 0 || lease.IsShared(j.ID) {
			continue
		}
		labels := []string{"jobid", strconv.FormatUint(uint64(j.Report.Job), 10), "user", j.Report.User, "partition", j.Report.Partition}
		for n, t := range jobTotals {
			totals[n].samples = append(totals[n].samples, sample{labels, t.of(j.Report.Totals)})
		}
	}
	return totals
}

// counters are the metrics that add up a figure of the summaries of ended jobs.
var counters = []struct {
	name, help string
	key        string  // of the figure
	units      float64 // of the figure, in one unit of the metric
}{
	{"job_seconds_total", "Seconds that closed jobs had their leases.", "seconds", 1},
	{"clients_total", "Clients that closed jobs had.", "clients_seen", 1},
	{"clients_at_epilog_total", "Clients that were still there when the epilog began.", "clients_at_epilog", 1},
	{"terminated_clients_total", "Clients that the epilog ended by terminate_client.", "terminated", 1},
	{"faults_total", "Fatal GPU errors that servers of closed jobs handled.", "faults", 1},
	{"bad_ends_total", "Clients that ended by a signal, with a status other than 0, or by a fatal GPU error.",
		"bad_ends", 1},
	{"energy_joules_total", "Energy of the GPUs of closed jobs, as far as it is known.", "energy_j", 1},
	{"pauses_total", "Times that the guards of closed jobs paused the neighbours of a dead client.", "pauses", 1},
	{"paused_seconds_total", "Time of all pauses of closed jobs.", "paused_ms", 1000},
}

// totals is the sum over the jobs that have ended since the log begins.
type totals struct {
	jobs, unclosed int
	figures        figures
}

// figures are numbers of a job by their key in its summary.
type figures map[string]float64

// addUp adds up the summaries of a log. It skips other lines, and lines that are longer than a summary.
func addUp(log io.Reader) (t totals, err error) {
	lines := bufio.NewReaderSize(log, 64<<10)
	mark := []byte(`"step":"` + epilog.SummaryStep + `"`)
	t.figures = figures{}
	unclosed := map[uint32]figures{}
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return t, nil
		case err == nil && bytes.Contains(line, mark):
			t.add(line, unclosed)
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return t, err
		}
	}
}

// add adds a job whose lease is closed. An earlier epilog of the job that failed may have ended the clients that it
// counted. So add takes the larger figures of both summaries.
func (t *totals) add(line []byte, unclosed map[uint32]figures) {
	var s struct {
		Step   string
		Job    uint32
		Daemon string // that jobs have shared; "" for a job
		Closed bool
	}
	var values map[string]any
	if json.Unmarshal(line, &s) != nil || s.Step != epilog.SummaryStep || json.Unmarshal(line, &values) != nil {
		return
	}
	job := figures{}
	for _, c := range counters {
		value, _ := values[c.key].(float64)
		job[c.key] = max(value, unclosed[s.Job][c.key])
	}
	if !s.Closed {
		t.unclosed++
		unclosed[s.Job] = job
		return
	}
	delete(unclosed, s.Job)
	if s.Daemon == "" {
		t.jobs++
	}
	for key, value := range job {
		t.figures[key] += value
	}
}

func (t totals) families() []family {
	counter := func(name, help string, value float64) family {
		return family{name, "counter", help, []sample{{nil, value}}}
	}
	all := []family{
		counter("closed_jobs_total", "Jobs whose leases were closed.", float64(t.jobs)),
		counter("epilog_failures_total", "Times that a lease could not be closed.", float64(t.unclosed)),
	}
	for _, c := range counters {
		all = append(all, counter(c.name, c.help, t.figures[c.key]/c.units))
	}
	return all
}
