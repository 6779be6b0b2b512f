// SPDX-License-Identifier: Apache-2.0

// Package plan computes the parts that ranks get of GPUs that need not be there, and uses the
// arithmetic of the wrapper, so ranks get the same. It is pure: values in, values out.
package plan

import (
	"fmt"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// Request is the question: a number of ranks on a number of GPUs of one model, at least one of each.
type Request struct {
	Model      policy.Model // with the clients that MPS serves on a GPU
	GPUs       int
	Ranks      int
	Share      policy.ShareRule
	Memory     policy.MemoryRule
	Overcommit float64 // how many times even memory is promised
	Ceiling    policy.Percent
}

// Rank is one rank's GPU and its part of that GPU.
type Rank struct {
	Rank int `json:"rank"`
	GPU  int `json:"gpu"`
	SMs  int `json:"sms"`
	// Percent is null if the rank has no cap.
	Percent policy.Percent `json:"percent"`
	// MemoryMiB is the memory that the program can use, without its context; null if it has no limit.
	MemoryMiB *int `json:"memory_mib"`
}

// Answer returns each rank's place, in the order of the ranks. It refuses what MPS would refuse.
func (q Request) Answer() ([]Rank, error) {
	if most := (q.Ranks + q.GPUs - 1) / q.GPUs; most > q.Model.Clients { // ranks go round the GPUs
		return nil, fmt.Errorf("cannot place %d ranks on %s: GPU 0 would have %d and MPS serves %d at once: run at most %d ranks, or more GPUs",
			q.Ranks, words.Count(q.GPUs, "GPU"), most, q.Model.Clients, q.GPUs*q.Model.Clients)
	}
	ranks := make([]Rank, q.Ranks)
	for gpu := range min(q.GPUs, q.Ranks) { // rank r is on GPU r modulo the number of GPUs
		n := (q.Ranks - gpu + q.GPUs - 1) / q.GPUs
		shares, err := policy.SplitSMs(q.Model.GPU, q.Share, n, q.Ceiling)
		if err != nil {
			return nil, err
		}
		for i, share := range shares {
			memory, err := policy.MemoryPerRank(q.Model.MemoryMiB, policy.ContextMiB(share.SMs), n, q.Overcommit, q.Memory)
			if err != nil {
				return nil, err
			}
			r := Rank{Rank: gpu + i*q.GPUs, GPU: gpu, SMs: share.SMs, Percent: share.Percent}
			if !q.Memory.None() {
				r.MemoryMiB = &memory.UsableMiB
			}
			ranks[r.Rank] = r
		}
	}
	return ranks, nil
}
