// SPDX-License-Identifier: Apache-2.0

// Package plan computes the parts that ranks get of GPUs that need not be there, and uses the
// arithmetic of the wrapper, so ranks get the same. It is pure: values in, values out.
package plan

import (
	"errors"
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// Request is the question, as a user types it.
type Request struct {
	GPU     string // a model's name
	SMs     int    // of a GPU without a name here
	GPUs    int
	Ranks   int
	Clients int    // that MPS serves on a GPU; 0 for the model's own
	Share   string // none, even, overlap:F, PCT%, Nsm or a list
	Memory  string // none, even or a size
	Over    string // how many times even memory is promised
	Ceiling string // percent
}

// Plan is the answer: each rank's place, in the order of the ranks.
type Plan struct {
	Ranks []Rank `json:"ranks"`
	Asked Asked  `json:"-"`
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

// Asked is the question with its values parsed.
type Asked struct {
	Model      policy.Model
	GPUs       int
	Share      policy.ShareRule
	Memory     policy.MemoryRule
	Overcommit float64 // how many times even memory is promised
	Ceiling    policy.Percent
}

// Rules returns the rules of the question as text.
func (a Asked) Rules() string {
	return fmt.Sprintf("share %s, memory %s, ceiling %s %%", a.Share, a.Memory, a.Ceiling)
}

const maxGPUs = 64

// Answer makes the plan.
func (q Request) Answer() (Plan, error) {
	model, err := q.model()
	if err != nil {
		return Plan{}, err
	}
	if q.GPUs < 1 || q.GPUs > maxGPUs {
		return Plan{}, fmt.Errorf("cannot plan for %d GPUs: give --gpus 1 to %d", q.GPUs, maxGPUs)
	}
	if q.Ranks < 1 {
		return Plan{}, fmt.Errorf("cannot plan for %d ranks: give --ranks, the number of ranks on the node", q.Ranks)
	}
	if err := fits(q.Ranks, q.GPUs, model); err != nil {
		return Plan{}, err
	}
	plan := Plan{Ranks: make([]Rank, q.Ranks), Asked: Asked{Model: model, GPUs: q.GPUs}}
	if err := plan.Asked.readRules(q); err != nil {
		return Plan{}, err
	}
	for gpu := range min(q.GPUs, q.Ranks) {
		if err := plan.place(gpu); err != nil {
			return Plan{}, err
		}
	}
	return plan, nil
}

// fits refuses the requests that MPS would refuse. The first GPU has the most ranks, because ranks go round the GPUs.
func fits(ranks, gpus int, model policy.Model) error {
	maxRanks := (ranks + gpus - 1) / gpus
	if maxRanks <= model.Clients {
		return nil
	}
	return fmt.Errorf("cannot place %d ranks on %s: GPU 0 would have %d and MPS serves %d at once: run at most %d ranks, or more GPUs",
		ranks, words.Count(gpus, "GPU"), maxRanks, model.Clients, gpus*model.Clients)
}

// readRules parses the rules of the question.
func (a *Asked) readRules(q Request) (err error) {
	if a.Share, err = policy.ParseShare(q.Share); err != nil {
		return err
	}
	if a.Memory, err = policy.ParseMemory(q.Memory); err != nil {
		return err
	}
	if a.Overcommit, err = policy.ParseOvercommit(q.Over); err != nil {
		return err
	}
	if a.Ceiling, err = policy.ParsePercent(q.Ceiling); err != nil {
		return fmt.Errorf("cannot read --ceiling: %w", err)
	}
	return nil
}

// model returns the GPU in question: one known by name, or one with a number of SMs and unknown memory.
func (q Request) model() (policy.Model, error) {
	model, err := q.named()
	if err != nil {
		return model, err
	}
	if q.Clients < 0 {
		return model, fmt.Errorf("cannot plan for %d clients: give --clients 1 or more", q.Clients)
	}
	if q.Clients > 0 {
		model.Clients = q.Clients
	}
	return model, nil
}

func (q Request) named() (policy.Model, error) {
	switch {
	case q.GPU == "" && q.SMs == 0:
		return policy.Model{}, errors.New("cannot plan: no GPU is given: name one with --gpu, or give its multiprocessors with --sms")
	case q.SMs < 0 || q.SMs > maxSMs:
		return policy.Model{}, fmt.Errorf("cannot plan for a GPU of %d SMs: give --sms 1 to %d", q.SMs, maxSMs)
	case q.SMs == 0:
		model, err := policy.FindModel(q.GPU)
		if err != nil {
			err = fmt.Errorf("%w; for another GPU, give --sms N in place of --gpu", err)
		}
		return model, err
	}
	known, err := policy.FindModel(q.GPU)
	if err == nil && known.GPU.SMs != q.SMs {
		return policy.Model{}, fmt.Errorf("cannot plan with --sms %d: %s has %d SMs: leave out --gpu or --sms", q.SMs, known.Name, known.GPU.SMs)
	}
	if err == nil {
		return known, nil
	}
	return policy.Model{Name: "GPU", GPU: policy.GPU{SMs: q.SMs, SMsPerTPC: policy.DefaultSMsPerTPC}, Clients: policy.Clients}, nil
}

// maxSMs is far above any GPU. It keeps a typing error from being divided.
const maxSMs = 10_000

// place places the ranks of a GPU: rank r is on GPU r modulo the number of GPUs.
func (p Plan) place(gpu int) error {
	n := (len(p.Ranks) - gpu + p.Asked.GPUs - 1) / p.Asked.GPUs
	shares, err := policy.SplitSMs(p.Asked.Model.GPU, p.Asked.Share, n, p.Asked.Ceiling)
	if err != nil {
		return err
	}
	for i, share := range shares {
		memory, err := p.memory(share, n)
		if err != nil {
			return err
		}
		rank := gpu + i*p.Asked.GPUs
		p.Ranks[rank] = Rank{Rank: rank, GPU: gpu, SMs: share.SMs, Percent: share.Percent, MemoryMiB: memory}
	}
	return nil
}

// memory returns the memory that a rank with this share can use, nil if it has no limit.
func (p Plan) memory(share policy.Share, ranks int) (*int, error) {
	rule, model := p.Asked.Memory, p.Asked.Model
	if !rule.None() && model.MemoryMiB == 0 {
		return nil, fmt.Errorf("cannot limit memory to %s: the memory of a GPU given by --sms is not known: "+
			"name it with --gpu (%s)", rule, known())
	}
	memory, err := policy.MemoryPerRank(model.MemoryMiB, policy.ContextMiB(share.SMs), ranks, p.Asked.Overcommit, rule)
	if err != nil || rule.None() {
		return nil, err
	}
	return &memory.UsableMiB, nil
}

// Total returns a sentence about the ranks of a GPU, without a full stop.
func (p Plan) Total(gpu int) string {
	ranks, sms := 0, 0
	for _, r := range p.Ranks {
		if r.GPU == gpu {
			ranks, sms = ranks+1, sms+r.SMs
		}
	}
	if ranks == 0 {
		return fmt.Sprintf("GPU %d: no rank", gpu)
	}
	all := p.Asked.Model.GPU.SMs
	return fmt.Sprintf("GPU %d: %s, %d of %d SMs assigned (%.2f ×)", gpu, words.Count(ranks, "rank"), sms, all, float64(sms)/float64(all))
}

func known() string {
	var names []string
	for _, m := range policy.Models() {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}
