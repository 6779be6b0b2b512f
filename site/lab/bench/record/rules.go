// SPDX-License-Identifier: Apache-2.0

package record

import (
	"slices"

	"github.com/slurm-mps/slurm-mps/policy"
)

// Rule is a way in which ranks share a GPU.
type Rule struct {
	Name    string
	Daemon  Daemon
	Overlap float64 // of ours
}

// Daemon is whose daemon the ranks are clients of.
type Daemon int

const (
	None Daemon = iota // time-slicing: each rank has the GPU in turn
	Bare               // a plain daemon, ranks in an environment made by hand
	Ours               // prolog, mpirun-wrap, epilog
)

// Rules in the order in which they are compared.
var Rules = []Rule{
	{Name: "time-slicing"},
	{Name: "uncapped", Daemon: Bare},
	{Name: "even", Daemon: Ours, Overlap: 1},
	{Name: "integer 100/n", Daemon: Bare},
	{Name: "overlap 1.5", Daemon: Ours, Overlap: 1.5},
	{Name: "overlap 2", Daemon: Ours, Overlap: 2},
	{Name: "overlap 3", Daemon: Ours, Overlap: 3},
}

// FindRule is the rule of a name of Rules.
func FindRule(name string) Rule {
	return Rules[slices.IndexFunc(Rules, func(r Rule) bool { return r.Name == name })]
}

// Shares are the SMs that each of n ranks gets; none for time-slicing, where each has all of them.
func (r Rule) Shares(gpu policy.GPU, n int) []int {
	if r.Daemon == None {
		return nil
	}
	all := slices.Repeat([]int{gpu.SMs}, n)
	if r.Daemon == Ours {
		grant := policy.DefaultGrant()
		grant.Overlap = r.Overlap
		shares, err := policy.EvenShares(gpu, n, grant)
		if err != nil {
			panic(err) // of a GPU that is one and a constant grant
		}
		for i, share := range shares {
			all[i] = share.SMs
		}
	}
	if r.Name == "integer 100/n" && n > 1 {
		all = slices.Repeat([]int{gpu.SMsAt(policy.PercentFrom(float64(100 / n)))}, n)
	}
	return all
}

// Twin is the first rule that gives n ranks the very same SMs: the same thing need not be measured twice.
func (r Rule) Twin(gpu policy.GPU, n int) Rule {
	own := r.Shares(gpu, n)
	for _, other := range Rules {
		if r.Daemon != None && other.Daemon != None && slices.Equal(own, other.Shares(gpu, n)) {
			return other
		}
	}
	return r
}
