// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// recorded is what the recorder of a job without MPS costs on one GPU, at the usual interval.
type recorded struct {
	CPU []float64 `json:"ms_a_minute"` // of processor time, one for each window
	RSS int       `json:"rss_kib"`
}

// recorderWindow has three samples at the usual interval of ten seconds.
const recorderWindow = 30 * time.Second

func recorder(built string, real bool, windows int) (r recorded, err error) {
	err = onNode(built, real, set{GPUs: 1, Scope: "job"}, manyHooks, func(ctx context.Context, b bench) error {
		unchanged := ""
		if real {
			unchanged = testnode.Unchanged
		}
		policy := "record = \"all\"\n" + testnode.Default(`drain_grace = "0s"`, unchanged)
		if err := os.WriteFile(b.node.Paths().Policy(), []byte(policy), 0o644); err != nil {
			return err
		}
		job := b.job(7, 1)
		job.Features = ""
		if _, err := b.timed(ctx, job, "prolog"); err != nil {
			return err
		}
		wait.Sleep(ctx, idleAfter)
		err := b.watchRecorder(ctx, &r, windows)
		_, failed := b.timed(ctx, job, "epilog")
		return errors.Join(err, failed)
	})
	return r, err
}

func (b bench) watchRecorder(ctx context.Context, r *recorded, windows int) error {
	pid, err := b.recorderOfJob()
	if err != nil {
		return err
	}
	for range windows {
		before, began := spentBy([]int{pid}), time.Now()
		wait.Sleep(ctx, recorderWindow)
		used := spentBy([]int{pid}).cpu - before.cpu
		if used <= 0 {
			return fmt.Errorf("the recorder has used %.1f ms: it has ended", used)
		}
		r.CPU = append(r.CPU, used*time.Minute.Seconds()/time.Since(began).Seconds())
	}
	rollup, err := os.ReadFile(filepath.Join(proc.Folder(pid), "smaps_rollup"))
	r.RSS = int(proc.Numbers(rollup)["Rss"])
	return err
}

// recorderOfJob finds the recorder of the node's only job.
func (b bench) recorderOfJob() (int, error) {
	all, err := proc.PIDs()
	var found []proc.Process
	for _, pid := range all {
		if name, _ := proc.Name(pid); name == "gpu-usage" {
			if stat, err := proc.ReadStat(pid); err == nil && stat.Running() {
				found = append(found, stat.Process)
			}
		}
	}
	for i, line := range proc.CommandLines(context.Background(), found) {
		if slices.Contains(line.Args, b.node.Root) {
			return found[i].PID, err
		}
	}
	log, _ := os.ReadFile(b.node.Paths().Log())
	return 0, errors.Join(err, fmt.Errorf("cannot find the job's recorder: the log has %q", log))
}

func (r recorded) print() {
	fmt.Printf("\nrecorder of a job without MPS: %.1f ms of a processor a minute (median; at most %.1f), %d KiB\n",
		median(r.CPU), slices.Max(r.CPU), r.RSS)
}
