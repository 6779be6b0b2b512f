// SPDX-License-Identifier: Apache-2.0

package state

import (
	"slices"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// sharing is a node on which jobs 7 and 8 have a daemon each on one GPU, with a client each.
func sharing() Node {
	n := Node{Root: true, GPUs: []GPU{{UUID: gpuA, Processes: []Process{{PID: 70, Kind: KindClient}, {PID: 80, Kind: KindClient}}}}}
	for i, id := range []uint32{7, 8} {
		n.claims = append(n.claims, lease.Claim{UUID: gpuA, Job: id, Shared: true})
		n.Jobs = append(n.Jobs, Job{
			ID: id, Phase: Opened, leased: true, ticket: &lease.Ticket{},
			Devices: []Held{{UUID: gpuA, Clients: []Client{{PID: 70 + 10*i, Percent: 1}}}},
			Daemons: []Daemon{{State: Serves, Devices: []site.UUID{gpuA}}},
		})
	}
	return n
}

// A client of one job's daemon is not a stranger to the other job on the GPU.
func TestJobsThatShareAGPUAreNoStrangers(t *testing.T) {
	n := sharing()
	if found := diagnose(n); slices.ContainsFunc(found, func(f Finding) bool { return f.Kind == clientOfAnother }) {
		t.Errorf("%+v", found)
	}
	if jobs := n.sharers(gpuA); !slices.Equal(jobs, []uint32{7, 8}) {
		t.Errorf("the GPU's jobs are %v", jobs)
	}
}

// A shared daemon needs a job, and a job that shares a daemon needs its lease.
func TestASharedDaemonAndItsJobs(t *testing.T) {
	const shared = 0xf0000000
	kinds := func(jobs ...Job) (all []Kind) {
		n := Node{Root: true}
		for _, j := range jobs {
			j.Phase, j.leased, j.ticket = Opened, true, &lease.Ticket{}
			n.Jobs = append(n.Jobs, j)
		}
		for _, f := range diagnose(n) {
			all = append(all, f.Kind)
		}
		return all
	}
	for _, c := range []struct {
		jobs []Job
		want []Kind
	}{
		{[]Job{{ID: 7, Joined: shared}, {ID: shared}}, nil},
		{[]Job{{ID: shared}}, []Kind{sharedWithoutJob}},
		{[]Job{{ID: 7, Joined: shared}}, []Kind{jobWithoutShared}},
	} {
		if got := kinds(c.jobs...); !slices.Equal(got, c.want) {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}
