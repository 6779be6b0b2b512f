// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// For 1 to 8 GPUs, 1 to 64 ranks and every rule, each rank is placed once, and on the next GPU in the cycle. Its
// percentage gives its SMs. Even shares add up to the GPU and differ by at most one TPC.
func TestEachRankIsPlacedOnce(t *testing.T) {
	for _, share := range []string{"none", "even", "overlap:2", "33.333334%"} {
		for gpus := 1; gpus <= 8; gpus++ {
			for ranks := 1; ranks <= 64; ranks++ {
				q := onH200s(t, gpus, ranks, share, "100")
				placed := must.Get(q.Answer())(t)
				checkPlacements(t, placed, q)
			}
		}
	}
}

// onH200s is a question about H200s on which MPS serves 64 clients.
func onH200s(t *testing.T, gpus, ranks int, share, ceiling string) Request {
	t.Helper()
	model, err := policy.FindModel("H200")
	must.OK(t, err)
	model.Clients = 64
	q := Request{Model: model, GPUs: gpus, Ranks: ranks, Overcommit: 1}
	if q.Share, err = policy.ParseShare(share); err != nil {
		t.Fatal(err)
	}
	if q.Ceiling, err = policy.ParsePercent(ceiling); err != nil {
		t.Fatal(err)
	}
	return q
}

func checkPlacements(t *testing.T, ranks []Rank, q Request) {
	t.Helper()
	gpu := q.Model.GPU
	placed := make([][]policy.Share, q.GPUs)
	for i, r := range ranks {
		must.Have(t, r.Rank == i && r.GPU == i%q.GPUs, "%+v: line %d has rank %d on GPU %d", q, i, r.Rank, r.GPU)
		if r.Percent != 0 && gpu.SMsAt(r.Percent) != r.SMs || r.Percent == 0 && r.SMs != gpu.SMs {
			t.Errorf("%+v: rank %d has %d SMs and %s %%, which gives %d", q, i, r.SMs, r.Percent, gpu.SMsAt(r.Percent))
		}
		placed[r.GPU] = append(placed[r.GPU], policy.Share{SMs: r.SMs, Percent: r.Percent})
	}
	must.Have(t, len(ranks) == q.Ranks, "%+v: %d placed", q, len(ranks))
	for g, shares := range placed {
		sum, lowest, highest := 0, gpu.SMs, 0
		for _, s := range shares {
			sum, lowest, highest = sum+s.SMs, min(lowest, s.SMs), max(highest, s.SMs)
		}
		fits := len(shares) > 0 && len(shares) <= gpu.SMs/policy.MinSMs
		must.Hold(t, q.Share.String() != "even" || !fits || sum == gpu.SMs && highest-lowest <= gpu.SMsPerTPC,
			"%+v: GPU %d: sum %d, from %d to %d", q, g, sum, lowest, highest)
	}
}
