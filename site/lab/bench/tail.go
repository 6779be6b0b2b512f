// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// pair is a prolog and the epilog of the same job, without Slurm and without clients.
type pair struct {
	Began  time.Time `json:"began"`
	Load   bool      `json:"beside_load"`
	Prolog float64   `json:"prolog_ms"`
	Epilog float64   `json:"epilog_ms"`
}

// tails measures pairs of hooks, first alone and then beside load. Each pair is a line of the file raw, at once. So an
// interrupted run keeps what it has.
func tails(built string, real bool, pairs int, raw string) error {
	to := io.Discard
	if raw != "" {
		file, err := os.Create(raw)
		if err != nil {
			return err
		}
		defer file.Close()
		to = file
	}
	b, err := newBench(built, real, set{GPUs: 1, Scope: "job"})
	defer b.remove()
	if err != nil {
		return err
	}
	ctx := context.Background()
	fmt.Print(tailHeader)
	alone, err := b.pairs(ctx, 1, pairs, false, to)
	printTails(os.Stdout, alone)
	if err != nil {
		return err
	}
	stop, err := startLoad(ctx)
	if err != nil {
		return err
	}
	loaded, err := b.pairs(ctx, 1+pairs, pairs, true, to)
	printTails(os.Stdout, loaded)
	return errors.Join(err, stop())
}

const tailHeader = "hook    beside       pairs    p50     p99   p99.9     max   (ms)\n"

// pairs runs hooks of jobs with numbers from first on.
func (b bench) pairs(ctx context.Context, first, n int, load bool, raw io.Writer) (all []pair, err error) {
	lines := json.NewEncoder(raw)
	for id := first; id < first+n; id++ {
		job := b.job(uint32(id), 1)
		p := pair{Began: time.Now(), Load: load}
		b.settle()
		if p.Prolog, err = b.timed(ctx, job, "prolog"); err != nil {
			return all, err
		}
		if p.Epilog, err = b.timed(ctx, job, "epilog"); err != nil {
			return all, err
		}
		if err := lines.Encode(p); err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// printTails prints the percentiles of pairs that were measured alike.
func printTails(w io.Writer, all []pair) {
	if len(all) == 0 {
		return
	}
	beside := "nothing"
	if all[0].Load {
		beside = "load"
	}
	times := map[string][]float64{}
	for _, p := range all {
		times["prolog"], times["epilog"] = append(times["prolog"], p.Prolog), append(times["epilog"], p.Epilog)
	}
	for _, hook := range []string{"prolog", "epilog"} {
		sorted := slices.Sorted(slices.Values(times[hook]))
		fmt.Fprintf(w, "%-7s %-10s %7d %6.1f %7.1f %7.1f %7.1f\n", hook, beside, len(sorted),
			percentile(sorted, 50), percentile(sorted, 99), percentile(sorted, 99.9), sorted[len(sorted)-1])
	}
}

// percentile returns the smallest value of a sorted list that p percent of all values do not exceed.
func percentile(sorted []float64, p float64) float64 {
	// A thousandth of a percent is exact in whole numbers.
	rank := (len(sorted)*int(p*1000) + 100_000 - 1) / 100_000
	return sorted[max(rank, 1)-1]
}

// startLoad starts processes that load the machine: for each processor one that computes, and one that starts programs
// without end. stop ends them.
func startLoad(ctx context.Context) (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "load")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot load the machine: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return func() error {
		select {
		case err := <-ended:
			return fmt.Errorf("the load ended before the measurement: %w", err)
		default:
		}
		if err := cmd.Process.Kill(); err != nil {
			return err
		}
		<-ended
		return nil
	}, nil
}

// loadMain is the main function of that process. It ends when it is killed.
func loadMain() {
	runtime.GOMAXPROCS(2 * runtime.NumCPU())
	for range runtime.NumCPU() {
		go func() {
			for {
				_ = time.Now()
			}
		}()
		go func() {
			for {
				if err := exec.Command("/bin/true").Run(); err != nil {
					fmt.Fprintf(os.Stderr, "bench load: %v\n", err)
					os.Exit(1)
				}
			}
		}()
	}
	select {}
}
