// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"
)

// guarded shows what a job's guard adds to its prolog and its epilog. The values are milliseconds, one for each
// trial, for a job with one GPU. The keys are "guard" and "no guard" (hold = "0s"). The trials alternate.
type guarded struct {
	Prolog map[string][]float64 `json:"prolog_ms"`
	Epilog map[string][]float64 `json:"epilog_ms"`
}

func guards(built string, real bool, trials int) (g guarded, err error) {
	g = guarded{map[string][]float64{}, map[string][]float64{}}
	benches := map[string]bench{}
	for name, hold := range map[string]string{"guard": "30s", "no guard": "0s"} {
		b, err := newBench(built, real, set{GPUs: 1, Scope: "job"}, fmt.Sprintf("hold = %q", hold))
		defer b.remove()
		if err != nil {
			return g, err
		}
		benches[name] = b
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for trial := range trials {
		for _, name := range []string{"guard", "no guard"} {
			b := benches[name]
			b.settle()
			job := b.job(uint32(10_000+trial), 1)
			prolog, err := b.timed(ctx, job, "prolog")
			if err != nil {
				return g, err
			}
			epilog, err := b.timed(ctx, job, "epilog")
			if err != nil {
				return g, err
			}
			g.Prolog[name], g.Epilog[name] = append(g.Prolog[name], prolog), append(g.Epilog[name], epilog)
		}
	}
	return g, nil
}

func (g guarded) print() {
	fmt.Println("\n          prolog  epilog   (medians in ms)")
	for _, name := range []string{"guard", "no guard"} {
		fmt.Printf("%-9s %6.1f %7.1f\n", name, median(g.Prolog[name]), median(g.Epilog[name]))
	}
}
