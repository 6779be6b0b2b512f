// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math/rand/v2"
	"slices"
	"testing"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

func ticketOfOneH200(share policy.ShareRule, ceiling float64) lease.Ticket {
	grant := policy.DefaultGrant()
	grant.Share, grant.Ceiling = share, ceiling
	return lease.Ticket{
		Job: lease.Job{ID: 7}, Grant: grant, Daemons: []lease.Daemon{{}},
		Devices: []lease.TicketDevice{{Device: site.Device{UUID: "GPU-0", SMs: 132, TPC: 2, MemoryMiB: 143771}}},
	}
}

// smsOfRanks are the SMs of each rank of a launch. Rank i has the options options(i).
func smsOfRanks(t *testing.T, ticket lease.Ticket, ranks int, options func(rank int) mpirunwrap.Options) (sms []int) {
	t.Helper()
	for rank := range ranks {
		placement, err := mpirunwrap.Place(ticket, mpirunwrap.Rank{Task: launch.Task{LocalRank: rank, LocalSize: ranks}, Options: options(rank)})
		must.OK(t, err)
		sms = append(sms, placement.Share.SMs)
	}
	return sms
}

func byFlag(t *testing.T, share string) mpirunwrap.Options {
	t.Helper()
	var o mpirunwrap.Options
	must.OK(t, o.Set("share", share))
	return o
}

// A share gives the same SMs as a flag, as a variable, in the policy and in the plan, whatever else the policy
// grants.
func TestAShareIsTheSameInAllPlaces(t *testing.T) {
	for _, share := range []string{"none", "even", "overlap:1.5", "overlap:2", "40%", "1%"} {
		for n := 1; n <= policy.Clients; n++ {
			for _, ceiling := range []float64{100, 25} {
				planned, err := onH200s(t, 1, n, share, policy.PercentFrom(ceiling).String()).Answer()
				must.OK(t, err)
				var want []int
				for _, rank := range planned {
					want = append(want, rank.SMs)
				}
				ticket := ticketOfOneH200(policy.Overlap(2), ceiling)
				flag := byFlag(t, share)
				variable, err := mpirunwrap.ReadOptions(slurm.Env{"SLURM_MPS_SHARE": share})
				must.OK(t, err)
				if got := smsOfRanks(t, ticket, n, func(int) mpirunwrap.Options { return flag }); !slices.Equal(got, want) {
					t.Errorf("--share=%s of %d ranks: %v, the plan has %v", share, n, got, want)
				}
				if got := smsOfRanks(t, ticket, n, func(int) mpirunwrap.Options { return variable }); !slices.Equal(got, want) {
					t.Errorf("SLURM_MPS_SHARE=%s of %d ranks: %v, the plan has %v", share, n, got, want)
				}
				grant, err := policy.ReadGrant(map[string]string{"share": share})
				must.OK(t, err)
				if got := smsOfRanks(t, ticketOfOneH200(grant.Share, ceiling), n,
					func(int) mpirunwrap.Options { return mpirunwrap.Options{} }); !slices.Equal(got, want) {
					t.Errorf("the policy's %s of %d ranks: %v, the plan has %v", share, n, got, want)
				}
			}
		}
	}
}

// Ranks of one launch with different flags have together at most the SMs that they have if all use the largest flag.
func TestDifferentFlagsAddUpToNoMoreThanTheGreatest(t *testing.T) {
	shares := []string{"even", "overlap:1.05", "overlap:1.5", "overlap:2", "overlap:3.3"}
	sum := func(sms []int) (total int) {
		for _, n := range sms {
			total += n
		}
		return total
	}
	random := rand.New(rand.NewPCG(1, 2))
	ticket := ticketOfOneH200(policy.Overlap(1), 100)
	for range 300 {
		n := 1 + random.IntN(policy.Clients)
		given := make([]int, n)
		for i := range given {
			given[i] = random.IntN(len(shares))
		}
		got := sum(smsOfRanks(t, ticket, n, func(rank int) mpirunwrap.Options { return byFlag(t, shares[given[rank]]) }))
		greatest := byFlag(t, shares[slices.Max(given)])
		if highest := sum(smsOfRanks(t, ticket, n, func(int) mpirunwrap.Options { return greatest })); got > highest {
			t.Errorf("%v: %d SMs, and all with %s have %d", given, got, shares[slices.Max(given)], highest)
		}
	}
}
