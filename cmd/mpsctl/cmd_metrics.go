// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl metrics: the present state of a node, and the totals of its ended jobs, in Prometheus' text
// form.
//
// The program keeps no state. It reads the present state from the node, and adds up the totals from the log
// (docs/decisions/017).

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/state"
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

// replaceMetrics opens the folder of the file and writes the file in it. Only root can have made that folder.
func replaceMetrics(path, text string) error {
	dir, err := osfile.OpenTrustedFolder(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: make the folder: mkdir -p %s", err, filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return osfile.File{Content: []byte(text), Mode: 0o644, Sync: true}.Write(dir, filepath.Base(path))
}

// readTotals reads the log. A missing log is no failure, because no job has ended yet.
func readTotals(path string) (totals, error) {
	log, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return totals{}, nil
	}
	if err != nil {
		return totals{}, fmt.Errorf("cannot read totals: %w", err)
	}
	defer log.Close()
	ended, err := addUp(log)
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
