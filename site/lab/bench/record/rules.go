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
	Overlap float64 // for the daemon Ours
}

// Daemon is the kind of daemon that serves the ranks.
type Daemon int

const (
	None Daemon = iota // time-slicing: the ranks have the GPU in turn
	Bare               // a plain daemon; the ranks' environment is set by hand
	Ours               // prolog, mpirun-wrap, epilog
)

// Rules are in the order in which they are compared.
var Rules = []Rule{
	{Name: "time-slicing"},
	{Name: "uncapped", Daemon: Bare},
	{Name: "even", Daemon: Ours, Overlap: 1},
	{Name: "integer 100/n", Daemon: Bare},
	{Name: "overlap 1.5", Daemon: Ours, Overlap: 1.5},
	{Name: "overlap 2", Daemon: Ours, Overlap: 2},
	{Name: "overlap 3", Daemon: Ours, Overlap: 3},
}

// FindRule returns the rule of Rules with that name.
func FindRule(name string) Rule {
	return Rules[slices.IndexFunc(Rules, func(r Rule) bool { return r.Name == name })]
}

// Shares returns the SMs that each of n ranks gets. It returns nil for time-slicing, because each rank then has all
// SMs.
func (r Rule) Shares(gpu policy.GPU, n int) []int {
	if r.Daemon == None {
		return nil
	}
	all := slices.Repeat([]int{gpu.SMs}, n)
	if r.Daemon == Ours {
		grant := policy.DefaultGrant()
		grant.Share = policy.Overlap(r.Overlap)
		shares, err := policy.EvenShares(gpu, n, grant)
		if err != nil {
			panic(err) // impossible, because the GPU is valid and the grant is constant
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

// Twin returns the first rule that gives n ranks exactly the same SMs. Such rules need only one measurement.
func (r Rule) Twin(gpu policy.GPU, n int) Rule {
	own := r.Shares(gpu, n)
	for _, other := range Rules {
		if r.Daemon != None && other.Daemon != None && slices.Equal(own, other.Shares(gpu, n)) {
			return other
		}
	}
	return r
}
