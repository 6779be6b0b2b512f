// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// pair is a prolog and the epilog of the same job, without Slurm and without clients.
type pair struct {
	Began  time.Time `json:"began"`
	Load   bool      `json:"beside_load"`
	Prolog hook      `json:"prolog"`
	Epilog hook      `json:"epilog"`
}

// hook is one run of a hook, and what the machine did.
type hook struct {
	MS float64 `json:"ms"`
	activity
}

// manyHooks bounds a run of many hooks, each of which has a minute (timed).
const manyHooks = 12 * time.Hour

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
	return onNode(built, real, set{GPUs: 1, Scope: "job"}, manyHooks, func(ctx context.Context, b bench) error {
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
	})
}

const tailHeader = "hook    beside       pairs    p50     p99   p99.9     max   (ms)\n"

// addUp prints the percentiles of all pairs in some raw files. So a machine with many cores can measure on several
// sets of its cores at once.
func addUp(w io.Writer, files []string) error {
	all := map[bool][]pair{}
	for _, name := range files {
		content, err := os.Open(name)
		if err != nil {
			return err
		}
		defer content.Close()
		for lines := json.NewDecoder(content); lines.More(); {
			var p pair
			if err := lines.Decode(&p); err != nil {
				return fmt.Errorf("cannot read %s: %w", name, err)
			}
			all[p.Load] = append(all[p.Load], p)
		}
	}
	fmt.Fprint(w, tailHeader)
	printTails(w, all[false])
	printTails(w, all[true])
	return nil
}

// pairs runs hooks of jobs with numbers from first on.
func (b bench) pairs(ctx context.Context, first, n int, load bool, raw io.Writer) (all []pair, err error) {
	lines := json.NewEncoder(raw)
	for id := first; id < first+n; id++ {
		job := b.job(uint32(id), 1)
		p := pair{Began: time.Now(), Load: load}
		b.settle()
		if p.Prolog, err = b.watched(ctx, job, "prolog"); err != nil {
			return all, err
		}
		if p.Epilog, err = b.watched(ctx, job, "epilog"); err != nil {
			return all, err
		}
		if err := lines.Encode(p); err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (b bench) watched(ctx context.Context, job testnode.Job, program string) (h hook, err error) {
	before, err := now()
	if err != nil {
		return h, err
	}
	if h.MS, err = b.timed(ctx, job, program); err != nil {
		return h, err
	}
	after, err := now()
	h.activity = after.since(before)
	return h, err
}

// outlier is how many times the median a hook must take to be printed.
const outlier = 3

// printTails prints the percentiles of pairs that were measured alike, and each outlier.
func printTails(w io.Writer, all []pair) {
	if len(all) == 0 {
		return
	}
	beside := "nothing"
	if all[0].Load {
		beside = "load"
	}
	hooks := []struct {
		name string
		of   func(pair) hook
	}{{"prolog", func(p pair) hook { return p.Prolog }}, {"epilog", func(p pair) hook { return p.Epilog }}}
	for _, h := range hooks {
		var times []float64
		for _, p := range all {
			times = append(times, h.of(p).MS)
		}
		slices.Sort(times)
		fmt.Fprintf(w, "%-7s %-10s %7d %6.1f %7.1f %7.1f %7.1f\n", h.name, beside, len(times),
			percentile(times, 50), percentile(times, 99), percentile(times, 99.9), times[len(times)-1])
		for _, p := range all {
			if one := h.of(p); one.MS > outlier*percentile(times, 50) {
				at := p.Began.UTC().Format("2006-01-02 15:04:05.000")
				fmt.Fprintf(w, "  %s of the pair at %s: %.1f ms; %s\n", h.name, at, one.MS, one.activity)
			}
		}
	}
}

// percentile returns the smallest value of a sorted list that p percent of all values do not exceed.
func percentile(sorted []float64, p float64) float64 {
	// A thousandth of a percent is exact in whole numbers.
	rank := (len(sorted)*int(p*1000) + 100_000 - 1) / 100_000
	return sorted[max(rank, 1)-1]
}
