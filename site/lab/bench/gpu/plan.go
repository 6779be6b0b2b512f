// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

// cell is one unit of measurement: some ranks under a rule, and the programs that they run one after the other.
type cell struct {
	kind     string // kernels: ranks.c under mpirun; torch: ranks.py under mpirun; slurm: ranks.c under srun
	ranks    int
	rule     record.Rule
	round    int
	programs string
}

func (c cell) key() string { return fmt.Sprintf("%s/%d/%s/%d", c.kind, c.ranks, c.rule.Name, c.round) }

const (
	core = "fma,small,nbody,halo"
	wide = "fma,small,nbody,halo,triad,fft"
)

// widely are the numbers of ranks at which every program runs. At other numbers only the core programs run.
var widely = []int{1, 3, 8, 16, 48}

// batch is a row of the plan: the same ranks under all rules, in one round.
type batch struct {
	kind  string
	ranks int
	round int
}

// batches are in the order of their value. First come the numbers of ranks at which the rules differ, and then those
// that users choose. Repetitions for the spread come last.
var batches = []batch{
	{"kernels", 8, 1}, {"slurm", 16, 1}, {"kernels", 16, 1}, {"kernels", 48, 1}, {"torch", 8, 1}, {"kernels", 3, 1},
	{"kernels", 12, 1}, {"kernels", 24, 1}, {"kernels", 7, 1}, {"kernels", 32, 1}, {"slurm", 16, 2}, {"kernels", 4, 1},
	{"kernels", 2, 1}, {"kernels", 1, 1}, {"slurm", 16, 3}, {"torch", 16, 1}, {"torch", 3, 1}, {"torch", 1, 1}, {"torch", 48, 1},
	{"kernels", 8, 2}, {"torch", 8, 2}, {"kernels", 16, 2}, {"kernels", 48, 2}, {"kernels", 3, 2}, {"kernels", 12, 2},
	{"kernels", 7, 2}, {"kernels", 24, 2}, {"kernels", 32, 2}, {"kernels", 4, 2}, {"kernels", 2, 2}, {"kernels", 1, 2},
	{"torch", 16, 2}, {"torch", 3, 2}, {"torch", 1, 2}, {"torch", 48, 2},
}

// cells returns the cells of a batch. Every rule comes once, and no rule comes before its twin. Each round starts
// with another rule.
func (b batch) cells(gpu policy.GPU) []cell {
	var all []cell
	for i := range record.Rules {
		r := record.Rules[(i+b.round-1)%len(record.Rules)]
		if r.Twin(gpu, b.ranks).Name != r.Name || b.kind == "slurm" && r.Name != "time-slicing" && r.Name != "overlap 2" {
			continue
		}
		c := cell{kind: b.kind, ranks: b.ranks, rule: r, round: b.round, programs: core}
		switch {
		case b.kind == "slurm":
			c.programs = "small"
		case b.kind == "torch":
			c.programs = "transformer,cg"
		case slices.Contains(widely, b.ranks):
			c.programs = wide
		}
		all = append(all, c)
	}
	return all
}

// seconds estimates the time of a cell, from measurements on an H200. CUDA makes contexts one after the other.
func (c cell) seconds() float64 {
	n := float64(c.ranks)
	switch {
	case c.kind == "torch" && c.rule.Daemon == record.None:
		return 8 + 0.6*n
	case c.kind == "torch":
		return 7 + 0.4*n
	case c.rule.Daemon == record.None:
		return 5 + 0.35*n
	}
	return 5 + 0.15*n
}
