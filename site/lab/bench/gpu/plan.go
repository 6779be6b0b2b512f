package main

import (
	"fmt"
	"slices"

	"github.com/slurm-mps/slurm-mps/policy"
)

// rule is a way in which ranks share a GPU.
type rule struct {
	name    string
	daemon  daemon
	overlap float64 // of ours
}

// daemon is whose daemon the ranks are clients of.
type daemon int

const (
	none daemon = iota // time-slicing: each rank has the GPU in turn
	bare               // a plain daemon, ranks in an environment made by hand
	ours               // prolog, mpirun-wrap, epilog
)

// rules in the order in which they are compared.
var rules = []rule{
	{name: "time-slicing"},
	{name: "uncapped", daemon: bare},
	{name: "even", daemon: ours, overlap: 1},
	{name: "integer 100/n", daemon: bare},
	{name: "overlap 1.5", daemon: ours, overlap: 1.5},
	{name: "overlap 2", daemon: ours, overlap: 2},
	{name: "overlap 3", daemon: ours, overlap: 3},
}

func findRule(name string) rule {
	return rules[slices.IndexFunc(rules, func(r rule) bool { return r.name == name })]
}

// shares are the SMs that each of n ranks gets; none for time-slicing, where each has all of them.
func (r rule) shares(gpu policy.GPU, n int) []int {
	if r.daemon == none {
		return nil
	}
	all := slices.Repeat([]int{gpu.SMs}, n)
	if r.daemon == ours {
		grant := policy.DefaultGrant()
		grant.Overlap = r.overlap
		shares, err := policy.Divide(gpu, n, grant)
		if err != nil {
			panic(err) // of a GPU that is one and a constant grant
		}
		for i, share := range shares {
			all[i] = share.SMs
		}
	}
	if r.name == "integer 100/n" && n > 1 {
		all = slices.Repeat([]int{gpu.SMsAt(policy.PercentFrom(float64(100 / n)))}, n)
	}
	return all
}

// twin is the first rule that gives n ranks the very same SMs: the same thing need not be measured twice.
func (r rule) twin(gpu policy.GPU, n int) rule {
	own := r.shares(gpu, n)
	for _, other := range rules {
		if r.daemon != none && other.daemon != none && slices.Equal(own, other.shares(gpu, n)) {
			return other
		}
	}
	return r
}

// cell is what is measured at once: some ranks under a rule, and all the programs that they run one after the other.
type cell struct {
	kind     string // kernels: ranks.c under mpirun; torch: ranks.py under mpirun; slurm: ranks.c under srun
	ranks    int
	rule     rule
	round    int
	programs string
}

func (c cell) key() string { return fmt.Sprintf("%s/%d/%s/%d", c.kind, c.ranks, c.rule.name, c.round) }

const (
	core = "fma,small,nbody,halo"
	wide = "fma,small,nbody,halo,triad,fft"
)

// widely are the numbers of ranks at which every program runs; at the others the core programs do.
var widely = []int{1, 3, 8, 16, 48}

// batch is a row of the plan: the same ranks under all rules, in one round.
type batch struct {
	kind  string
	ranks int
	round int
}

// batches by what they are worth: where the rules differ, then where users are, then again for the spread.
var batches = []batch{
	{"kernels", 8, 1}, {"slurm", 16, 1}, {"kernels", 16, 1}, {"kernels", 48, 1}, {"torch", 8, 1}, {"kernels", 3, 1},
	{"kernels", 12, 1}, {"kernels", 24, 1}, {"kernels", 7, 1}, {"kernels", 32, 1}, {"slurm", 16, 2}, {"kernels", 4, 1},
	{"kernels", 2, 1}, {"kernels", 1, 1}, {"slurm", 16, 3}, {"torch", 16, 1}, {"torch", 3, 1}, {"torch", 1, 1}, {"torch", 48, 1},
	{"kernels", 8, 2}, {"torch", 8, 2}, {"kernels", 16, 2}, {"kernels", 48, 2}, {"kernels", 3, 2}, {"kernels", 12, 2},
	{"kernels", 7, 2}, {"kernels", 24, 2}, {"kernels", 32, 2}, {"kernels", 4, 2}, {"kernels", 2, 2}, {"kernels", 1, 2},
	{"torch", 16, 2}, {"torch", 3, 2}, {"torch", 1, 2}, {"torch", 48, 2},
}

// cells of a batch: every rule once, none before its twin, another one first in each round.
func (b batch) cells(gpu policy.GPU) []cell {
	var all []cell
	for i := range rules {
		r := rules[(i+b.round-1)%len(rules)]
		if r.twin(gpu, b.ranks).name != r.name || b.kind == "slurm" && r.name != "time-slicing" && r.name != "overlap 2" {
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

// seconds is a guess of what a cell takes, from what was seen on an H200: contexts are made one after the other.
func (c cell) seconds() float64 {
	n := float64(c.ranks)
	switch {
	case c.kind == "torch" && c.rule.daemon == none:
		return 8 + 0.6*n
	case c.kind == "torch":
		return 7 + 0.4*n
	case c.rule.daemon == none:
		return 5 + 0.35*n
	}
	return 5 + 0.15*n
}
