// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// growth shows on simulated GPUs how our overhead grows with the ranks of a GPU and with the jobs that a node starts.
type growth struct {
	RankCounts []int `json:"rank_counts"`
	// Together is the time of n ranks at once around a program that does nothing, from the first wrapper's start to
	// the last one's end. The values are milliseconds, one for each round. The keys are "wrapper" and "execs", which
	// only executes the program. The order is that of RankCounts.
	Together map[string][][]float64 `json:"together_ms"`
	Jobs     int                    `json:"jobs"`
	GPUs     int                    `json:"gpus"`
	// Starts is the number of jobs per second through slurmd, one value for each trial. The keys are "no hooks" and
	// "ours". The jobs have one GPU and do nothing. The time is from sbatch to the end of the last epilog.
	Starts map[string][]float64 `json:"jobs_per_second"`
}

var rankCounts = []int{1, 2, 4, 8, 16, 32, 48}

// ranksGrow measures the wrapper and the floor at every number of ranks.
func (g *growth) ranksGrow(ctx context.Context, execs, wrapper []string, rounds int) error {
	g.RankCounts, g.Together = rankCounts, map[string][][]float64{}
	for _, n := range rankCounts {
		times := map[string][]float64{}
		for range rounds {
			for name, line := range map[string][]string{"execs": execs, "wrapper": wrapper} {
				wall, _, err := together(ctx, line, n)
				if err != nil {
					return err
				}
				times[name] = append(times[name], wall)
			}
		}
		for name, all := range times {
			g.Together[name] = append(g.Together[name], all)
		}
	}
	return nil
}

// startsGrow measures how many jobs a node runs per second, without hooks and with ours, in turns.
func (g *growth) startsGrow(ctx context.Context, built string, trials int) (err error) {
	g.Jobs, g.GPUs, g.Starts = 24, 4, map[string][]float64{}
	dir, err := os.MkdirTemp("/tmp", "grow")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	s, err := testnode.New(dir, built, "", node.H200, node.H200, node.H200, node.H200)
	if err != nil {
		return err
	}
	user, err := lab.EnsureUser("hpc1", uid)
	if err != nil {
		return err
	}
	ways := []struct {
		name    string
		options lab.Options
	}{{"no hooks", lab.Options{}}, {"ours", lab.Options{Prolog: s.Command("prolog"), Epilog: s.Command("epilog")}}}
	clusters := map[string]*lab.Cluster{}
	defer func() {
		for _, c := range clusters {
			err = errors.Join(err, c.Stop())
		}
	}()
	for i, way := range ways {
		o := way.options
		o.Dir, o.GPUs, o.Features, o.PrologFlags, o.SameName = filepath.Join(dir, fmt.Sprintf("c%d", i)), g.GPUs, "mps", "Alloc", true
		if clusters[way.name], err = lab.Start(ctx, o); err != nil {
			return err
		}
	}
	for trial := range trials {
		for i := range ways {
			name := ways[(trial+i)%len(ways)].name
			took, err := runJobs(ctx, clusters[name], user, g.Jobs)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			g.Starts[name] = append(g.Starts[name], float64(g.Jobs)/took.Seconds())
		}
	}
	return nil
}

// runJobs submits an array of jobs that do nothing. It waits until all jobs and their epilogs are over.
func runJobs(ctx context.Context, c *lab.Cluster, user lab.User, n int) (time.Duration, error) {
	began := time.Now()
	id, err := c.Submit(ctx, user, fmt.Sprintf("--array=1-%d", n), "--gres=gpu:1", "--constraint=mps", "-n1", "-o", "/dev/null", "--wrap", "true")
	if err != nil {
		return 0, err
	}
	for {
		left, err := c.Run(ctx, user, "squeue", "-h", "-j", fmt.Sprint(id))
		if err != nil {
			return 0, err
		}
		if strings.TrimSpace(left.Stdout) == "" {
			return time.Since(began), nil
		}
		if !site.Sleep(ctx, 20*time.Millisecond) {
			return 0, fmt.Errorf("cannot wait for %d jobs: %w: %s", n, ctx.Err(), left.Stdout)
		}
	}
}

func (g growth) print() {
	fmt.Println("\nranks at once    execs  wrapper  ratio   (medians in ms)")
	for i, n := range g.RankCounts {
		execs, wrapper := median(g.Together["execs"][i]), median(g.Together["wrapper"][i])
		fmt.Printf("%13d %8.1f %8.1f %6.2f\n", n, execs, wrapper, wrapper/execs)
	}
	fmt.Printf("jobs a second through slurmd: %.2f without hooks, %.2f with ours (%d jobs, %d GPUs)\n", median(g.Starts["no hooks"]), median(g.Starts["ours"]), g.Jobs, g.GPUs)
}
