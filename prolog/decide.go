// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// decide asks the policy, after it has looked up what the rules mention. A look-up that fails is the node's failure.
// No rule has matched by then, so no rule can let the job run without MPS.
func (p Prolog) decide(ctx context.Context, a *admission, rules policy.Policy) error {
	a.request = policy.Request{Job: a.job.Job}
	refusal, err := p.lookUp(ctx, a, rules.Lookups, &a.request)
	if err != nil {
		return err
	}
	if refusal != "" {
		a.verdict = policy.Decision{Requested: true, Denied: refusal}
		return nil
	}
	a.verdict = rules.Decide(a.request)
	return nil
}

// lookUp adds to a request what the rules mention and Slurm does not pass. If it is not certain which GPUs the job or
// which features the node has, the job is refused, because a rule about them could only guess.
func (p Prolog) lookUp(ctx context.Context, a *admission, needs policy.Lookups, r *policy.Request) (refusal string, err error) {
	for _, look := range []struct {
		needed bool
		up     func() error
	}{
		{needs.Features, func() (err error) {
			if r.Features, err = p.Slurm.Features(a.job); err != nil {
				refusal = unread(err)
			}
			return nil
		}},
		{needs.Groups, func() (err error) { r.Groups, err = p.groupNames(ctx, a); return err }},
		{needs.Driver, func() (err error) { r.Driver, err = p.GPUs.Driver(); return err }},
		{needs.Devices, func() error {
			all, err := p.GPUs.Devices()
			r.NodeGPUs = len(all)
			return err
		}},
		{needs.GPU, func() (err error) { r.GPU, refusal, err = firstGPU(a); return err }},
	} {
		if !look.needed {
			continue
		}
		if err := look.up(); err != nil || refusal != "" {
			return refusal, err
		}
	}
	return "", nil
}

func firstGPU(a *admission) (facts policy.GPUFacts, refusal string, err error) {
	found, err := a.resolve()
	if err != nil || found.refusal != "" {
		return facts, found.refusal, err
	}
	first := found.devices[0]
	return policy.GPUFacts{Product: first.Name, SMs: first.SMs, MemoryMiB: first.MemoryMiB, MIG: first.UUID.MIG()}, "", nil
}

func (p Prolog) groupNames(ctx context.Context, a *admission) ([]string, error) {
	groups, err := a.groups()
	if err != nil {
		return nil, err
	}
	return p.GroupNames(ctx, groups)
}

// positions returns the places of the job's devices in Slurm's list, nil if Slurm named the devices themselves.
func positions(job slurm.Job) []int {
	if len(job.MIG)+len(job.UUIDs) > 0 {
		return nil
	}
	return job.GPUs
}
