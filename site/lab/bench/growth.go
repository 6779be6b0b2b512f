// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
)

// growth shows on simulated GPUs how our overhead grows with the ranks of a GPU.
type growth struct {
	RankCounts []int `json:"rank_counts"`
	// Together is the time of n ranks at once around a program that does nothing, from the first wrapper's start to
	// the last one's end. The values are milliseconds, one for each round. The keys are "wrapper" and "execs", which
	// only executes the program. The order is that of RankCounts.
	Together map[string][][]float64 `json:"together_ms"`
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

func (g growth) print() {
	fmt.Println("\nranks at once    execs  wrapper  ratio   (medians in ms)")
	for i, n := range g.RankCounts {
		execs, wrapper := median(g.Together["execs"][i]), median(g.Together["wrapper"][i])
		fmt.Printf("%13d %8.1f %8.1f %6.2f\n", n, execs, wrapper, wrapper/execs)
	}
}
