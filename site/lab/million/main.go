// SPDX-License-Identifier: Apache-2.0

// Command million runs prologs and epilogs of jobs on simulated nodes, without Slurm and without faults. It counts the
// false drains: exit codes other than 0 where nothing is wrong. One in a million jobs is one a month on a large site,
// and no single night can show that. So each run adds a line to runs.tsv, which is committed, and the sum counts:
//
//	million -minutes 60 [-workers N] [-kept FOLDER]
//	million -sum
//
// Both print the sum, and write it into docs/limits.md, which a test compares. With -sum it runs nothing. The exit code
// is 1 after a false drain, or if something is left on a node at the end. Then the folder of -kept has what the hook
// printed, and the node's log.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

const (
	lines = "site/lab/million/runs.tsv"
	page  = "docs/limits.md"
)

func main() {
	minutes := flag.Int("minutes", 60, "how long it runs")
	workers := flag.Int("workers", runtime.NumCPU(), "nodes at the same time")
	kept := flag.String("kept", ".build/million", "folder for what is known of a false drain")
	only := flag.Bool("sum", false, "run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var added run
	var err error
	if !*only {
		added, err = measure(ctx, time.Duration(*minutes)*time.Minute, *workers, *kept)
	}
	if err := errors.Join(err, note(".", added)); err != nil {
		fmt.Fprintf(os.Stderr, "million: %v\n", err)
		os.Exit(1)
	}
	if added.drains > 0 {
		fmt.Fprintf(os.Stderr, "million: %d false drains: see %s\n", added.drains, *kept)
		os.Exit(1)
	}
}

// measure runs pairs on each of some nodes until the time is over or ctx ends. What was counted until an error counts.
func measure(ctx context.Context, limit time.Duration, workers int, kept string) (sum run, err error) {
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		return sum, fmt.Errorf("cannot find commit: %w", err)
	}
	built, err := testnode.Built()
	if err != nil {
		return sum, err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	each := make([]run, workers)
	err = wait.Each(workers, func(i int) (err error) {
		each[i], err = pairs(limited, built, filepath.Join(kept, fmt.Sprintf("worker-%d", i)))
		return err
	})
	for _, one := range each {
		sum.pairs += one.pairs
		sum.drains += one.drains
	}
	sum.date, sum.commit = began.UTC().Format(time.DateOnly), strings.TrimSpace(string(commit))
	sum.seconds = int(time.Since(began).Seconds())
	return sum, err
}

// note adds a run to the file, if it has pairs, and writes the sum of all runs to stdout and into the page.
func note(module string, added run) error {
	file := filepath.Join(module, lines)
	if added.pairs > 0 {
		if err := appendRun(file, added); err != nil {
			return err
		}
		fmt.Printf("this run: %s pairs, %d false drains, %d s\n", thousands(added.pairs), added.drains, added.seconds)
	}
	sum, err := sumOf(file)
	if err != nil {
		return err
	}
	fmt.Println("all runs:", sum.sentence())
	path := filepath.Join(module, page)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	now, err := replaceSum(string(text), sum)
	if err != nil || now == string(text) {
		return err
	}
	return os.WriteFile(path, []byte(now), 0o644)
}
