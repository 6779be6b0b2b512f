// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
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
				planned := must.Get(onH200s(t, 1, n, share, policy.PercentFrom(ceiling).String()).Answer())(t)
				var want []int
				for _, rank := range planned {
					want = append(want, rank.SMs)
				}
				ticket := ticketOfOneH200(policy.Overlap(2), ceiling)
				flag := byFlag(t, share)
				variable := must.Get(mpirunwrap.ReadOptions(slurm.Env{"SLURM_MPS_SHARE": share}))(t)
				if got := smsOfRanks(t, ticket, n, func(int) mpirunwrap.Options { return flag }); !slices.Equal(got, want) {
					t.Errorf("--share=%s of %d ranks: %v, the plan has %v", share, n, got, want)
				}
				if got := smsOfRanks(t, ticket, n, func(int) mpirunwrap.Options { return variable }); !slices.Equal(got, want) {
					t.Errorf("SLURM_MPS_SHARE=%s of %d ranks: %v, the plan has %v", share, n, got, want)
				}
				grant := must.Get(policy.ReadGrant(map[string]string{"share": share}))(t)
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

// sweepLine is a line of the measurements. Only some lines are points of the sweep.
type sweepLine struct {
	Point *struct {
		Asked      string `json:"asked"`
		SMs        int    `json:"sms"`
		ContextMiB int    `json:"context_mib"`
	} `json:"point"`
}

// For every share that the wrapper was asked for, the plan has the SMs that CUDA on a real H200 reported. The plan
// keeps at kept as much memory for the context as the context took.
func TestPlanAgreesWithTheSweepOfAnH200(t *testing.T) {
	file := must.Get(os.Open("../../docs/measurements/9-h200/moments.jsonl"))(t)
	defer file.Close()
	points := 0
	for lines := json.NewDecoder(file); ; {
		var line sweepLine
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if line.Point == nil {
			continue
		}
		points++
		asked := line.Point.Asked
		if _, sms := strings.CutSuffix(asked, "sm"); sms { // a form that a share had then
			asked = policy.PercentFrom(math.Ceil(float64(line.Point.SMs)/132*1e8)/1e6).String() + "%"
		}
		ranks, err := onH200s(t, 1, 1, asked, "100").Answer()
		if err != nil {
			t.Fatalf("%s: %v", line.Point.Asked, err)
		}
		if got := ranks[0].SMs; got != line.Point.SMs {
			t.Errorf("%s: the plan has %d SMs, CUDA reported %d", line.Point.Asked, got, line.Point.SMs)
		}
		if kept := policy.ContextMiB(line.Point.SMs); kept < line.Point.ContextMiB {
			t.Errorf("%s: %d MiB are kept for the context, and it took %d", line.Point.Asked, kept, line.Point.ContextMiB)
		}
	}
	must.Hold(t, points == 166, "%d points: want every whole percentage and every number of TPCs of 132 SMs, 166", points)
}
