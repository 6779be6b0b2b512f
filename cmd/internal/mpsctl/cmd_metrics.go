// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl metrics: what a node has, and what its jobs came to, in Prometheus' text form.
//
// It keeps no state of its own: what is now is looked at, and totals are added up from the log (docs/decisions/017).

package mpsctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/spf13/cobra"
)

const metricsHelp = `metrics prints what this node has in Prometheus' text form, for node_exporter's textfile collector: jobs, daemons, clients
and findings as mpsctl status has them, and totals of the jobs that have ended, from the summaries in the log. When the
log is rotated the totals begin again, as those of a program that was restarted do. What running jobs use of their GPUs has
labels of the job, its user and its partition, and is as old as the last sample, 10 s at most. Of an idle GPU there is none.
Who is not root gets what they can see: no totals, and the use of their own jobs.

It asks the daemons, each for 2 s at most, takes 20 s at most for all of its looks, and changes nothing. What did not answer
by then is counted in slurm_mps_unanswered_daemons and slurm_mps_inspection_errors.

--out FILE puts the metrics into a file, whole. Every folder of its path must be root's own and writable by no one else, and
no link is followed.

It exits with 0 where it could print, with 1 where it could not, and with 2 for a wrong flag.`

// lookTime bounds all looks. The unit that writes the metrics is ended after a minute, and the next begins then.
const lookTime = 20 * time.Second

// metricsCommand is mpsctl metrics.
func metricsCommand(call *Invocation) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "metrics", Short: "print this node's metrics for Prometheus", Long: metricsHelp,
		Example:               "  mpsctl metrics\n  mpsctl metrics --out /var/lib/slurm-mps/metrics/slurm-mps.prom\n  systemctl enable --now slurm-mps-metrics.timer",
		DisableFlagsInUseLine: true, Args: NoArgs,
		RunE: func(*cobra.Command, []string) error {
			reader, err := inspect.Open(call.Paths, true)
			if err != nil {
				return cli.RuntimeError{Err: err}
			}
			ctx, stop := SignalContext()
			defer stop()
			looking, cancel := context.WithTimeout(ctx, lookTime)
			defer cancel()
			node, found := reader.Inspect(looking, inspect.Disagreements)
			if ctx.Err() != nil {
				return cli.RuntimeError{Err: errors.New("cannot print metrics: interrupted")}
			}
			families := nodeMetrics(node, found)
			families = append(families, useMetrics(reportsOf(node.Jobs))...)
			ended, err := readTotals(call.Paths.Log())
			switch {
			case err == nil:
				families = append(families, ended.families()...)
			case errors.Is(err, fs.ErrPermission) && !node.Root:
				call.PrintError("mpsctl", fmt.Errorf("%w: totals and other users' jobs are left out: run as root for them", err))
			default:
				return cli.RuntimeError{Err: err}
			}
			said := metricsText(families)
			if out != "" {
				err = replaceMetrics(out, said)
			} else {
				_, err = io.WriteString(call.Out, said)
			}
			return WriteError("metrics", err)
		},
	}
	c.Flags().StringVar(&out, "out", "", "put them into this `FILE`, in a folder that is root's own")
	return c
}

// replaceMetrics writes the file by way of its folder, which no one else than root can have put there.
func replaceMetrics(path, text string) error {
	dir, err := site.OpenTrustedFolder(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: make the folder: mkdir -p %s", err, filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return site.Replace(dir, filepath.Base(path), []byte(text), 0o644)
}

// readTotals reads the log. That there is none yet is no failure: no job has ended.
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

// family is a metric with its samples.
type family struct {
	name, kind, help string
	samples          []sample
}

// sample is a value under its labels: name, value, name, value.
type sample struct {
	labels []string
	value  float64
}

// metricsText is the whole of it, in Prometheus' text form.
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

// nodeMetrics is what was seen of the node.
func nodeMetrics(n inspect.Node, found []inspect.Finding) []family {
	jobs, daemons, findings := counts{string(inspect.Opened): 0}, counts{string(inspect.Serves): 0}, counts{}
	clients := family{name: "gpu_clients", kind: "gauge", help: "Clients of MPS on a GPU."}
	held := family{name: "gpu_allocated", kind: "gauge", help: "1 if a job has the GPU."}
	for _, j := range n.Jobs {
		jobs[string(j.Phase)]++
		for _, d := range j.Daemons {
			daemons[string(d.State)]++
		}
	}
	for _, g := range n.GPUs {
		labels, here := []string{"gpu", fmt.Sprint(g.Index), "uuid", string(g.UUID)}, 0
		for _, p := range g.Processes {
			if p.Kind == inspect.KindClient {
				here++
			}
		}
		clients.samples = append(clients.samples, sample{labels, float64(here)})
		held.samples = append(held.samples, sample{labels, map[bool]float64{true: 1}[g.Held]})
	}
	for _, f := range found {
		findings[string(f.Kind)]++
	}
	return []family{
		{"jobs", "gauge", "Jobs that have something here, by phase.", jobs.samples("phase")},
		{"daemons", "gauge", "Control daemons of jobs, by state.", daemons.samples("state")},
		clients, held,
		{"findings", "gauge", "What is not as the leases say, by kind: mpsctl status says what to do.", findings.samples("kind")},
		{"unanswered_daemons", "gauge", "Control daemons that did not answer in time, or that no time was left to ask.", []sample{{nil, float64(daemons[string(inspect.NoAnswer)] + daemons[string(inspect.Alive)])}}},
		{"inspection_errors", "gauge", "Parts of the node that could not be read.", []sample{{nil, float64(len(n.Incomplete))}}},
	}
}

// counts are numbers by a label's value.
type counts map[string]int

func (c counts) samples(label string) (all []sample) {
	for value, n := range c {
		all = append(all, sample{[]string{label, value}, float64(n)})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].labels[1] < all[j].labels[1] })
	return all
}
