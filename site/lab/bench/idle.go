// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// idling has the context switches a second of a job's guard and of the processes that it has started, in each window of
// time. The keys are "no client" and "8 idle clients", and then the names of the processes.
type idling map[string]map[string][]float64

const (
	idleAfter  = 3 * time.Second // the guard and its processes have started then
	idleWindow = 5 * time.Second
)

func idle(built string, real bool, windows int) (all idling, err error) {
	all = idling{}
	for name, clients := range map[string]int{"no client": 0, "8 idle clients": endClients} {
		err := onNode(built, real, set{GPUs: 1, Scope: "job"}, manyHooks, func(ctx context.Context, b bench) error {
			j, err := b.openJob(ctx, 7, 1, clients)
			if err != nil {
				return err
			}
			wait.Sleep(ctx, idleAfter)
			all[name], err = b.switches(ctx, windows)
			j.kill()
			if _, failed := b.timed(ctx, j.job, "epilog"); err == nil {
				err = failed
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// switches counts in each window.
func (b bench) switches(ctx context.Context, windows int) (map[string][]float64, error) {
	rates := map[string][]float64{}
	for range windows {
		before, err := b.switched()
		if err != nil {
			return nil, err
		}
		began := time.Now()
		wait.Sleep(ctx, idleWindow)
		after, err := b.switched()
		if err != nil {
			return nil, err
		}
		for name, count := range after {
			rates[name] = append(rates[name], float64(count-min(before[name], count))/time.Since(began).Seconds())
		}
	}
	return rates, nil
}

// switched returns how often the threads of the job's guard, and of the processes that it has started, have given up or
// lost their processor so far.
func (b bench) switched() (map[string]int, error) {
	guards, err := b.node.Guards()
	if err != nil {
		return nil, err
	}
	if len(guards) != 1 {
		return nil, fmt.Errorf("the node has %d guards, not one", len(guards))
	}
	counts := map[string]int{}
	for _, pid := range trees(guards) {
		name, err := proc.Name(pid)
		if err != nil {
			continue // it has ended
		}
		given, lost := watch.Switches(pid)
		counts[name] += given + lost
	}
	return counts, nil
}

// trees returns processes with all that they have started.
func trees(pids []int) []int {
	for i := 0; i < len(pids); i++ {
		pids = append(pids, proc.Children(pids[i])...)
	}
	return pids
}

func (all idling) print() {
	fmt.Println("\ncontext switches a second of an idle job   median      max")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, process := range slices.Sorted(maps.Keys(all[name])) {
			rates := all[name][process]
			fmt.Printf("%-20s %-20s %8.1f %8.1f\n", name, process, median(rates), slices.Max(rates))
		}
	}
}
