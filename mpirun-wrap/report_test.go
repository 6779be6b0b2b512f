// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

func TestReport(t *testing.T) {
	ticket := ticketOf(2, policy.ScopeJob, 1)
	ticket.Rule, ticket.Grant.Ceiling = "students", 25
	ticket.Devices[0].MemoryMiB = 143771
	ticket.Devices[0].UUID, ticket.Devices[1].Position = "GPU-92331f0a-1c2d-4e5f-8a9b-0123456789ab", 1
	for _, c := range []struct {
		ranks   int
		options map[string]string
		binding launch.Binding
		want    string
	}{
		{4, nil, launch.Binding{}, "# rank 0 of 4: GPU 0 (GPU-92331f0a), 32 of 132 SMs (24.2 %, ceiling 25 %), 2 ranks on it\n"},
		{2, map[string]string{"mem": "8G"}, launch.Binding{}, "# rank 0 of 2: GPU 0 (GPU-92331f0a), 32 of 132 SMs (24.2 %, ceiling 25 %), 8192 MiB, 1 rank on it\n"},
		{4, map[string]string{"verbose": "true", "share": "60%", "gpu": "block"}, launch.Binding{}, "# rank 0 of 4: GPU 0 (GPU-92331f0a), 32 of 132 SMs (24.2 %, ceiling 25 %), 2 ranks on it\n" +
			"#   number of ranks by srun\n" +
			"#   GPU by --gpu: block\n" +
			"#   share 60% by --share, in place of even by rule \"students\" of the policy\n" +
			"#   ceiling 25 % by that rule: at most 32 SMs\n"},
		{2, map[string]string{"verbose": "true"}, launch.Binding{GPUs: []int{0}}, "# rank 0 of 2: GPU 0 (GPU-92331f0a), 32 of 132 SMs (24.2 %, ceiling 25 %), 1 rank on it\n" +
			"#   number of ranks by srun\n" +
			"#   GPU by Slurm: it is bound to the task\n" +
			"#   share even by rule \"students\" of the policy\n" +
			"#   ceiling 25 % by that rule: at most 32 SMs\n"},
		{1, map[string]string{"verbose": "true"}, launch.Binding{OneTask: true}, "# rank 0 of 1: GPU 0 (GPU-92331f0a), 32 of 132 SMs (24.2 %, ceiling 25 %), 1 rank on it; " +
			"GPU 1 (GPU-1), 32 of 132 SMs (24.2 %, ceiling 25 %), 1 rank on it\n" +
			"#   number of ranks by srun\n" +
			"#   GPU by Slurm: the step has no other task on this node\n" +
			"#   share even by rule \"students\" of the policy\n" +
			"#   ceiling 25 % by that rule: at most 32 SMs\n"},
	} {
		rank := Rank{Task: launch.Task{LocalSize: c.ranks, Source: launch.SourceStepd}, Binding: c.binding}
		for flag, value := range c.options {
			must.OK(t, rank.Options.Set(flag, value))
		}
		placement := must.Get(Place(ticket, rank))(t)
		var out bytes.Buffer
		if err := placement.report(&out, false, false); err != nil || out.String() != c.want {
			t.Errorf("%v\ngot  %swant %s", err, out.String(), c.want)
		}
	}
}

// The report of a rank is one JSON object, with null for a variable that is unset.
func TestReportAsJSON(t *testing.T) {
	placement := must.Get(Place(ticketOf(1, policy.ScopeJob, 1), Rank{Task: launch.Task{LocalSize: 1}}))(t)
	var out bytes.Buffer
	must.OK(t, placement.report(&out, true, false))
	var got struct {
		SMs int
		Env map[string]*string
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.SMs != 132 {
		t.Errorf("%v: %s", err, &out)
	}
	if value, known := got.Env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]; !known || value != nil {
		t.Errorf("%s", &out)
	}
}

// One sentence reports a share that is cut or rounded up, and the line has everything that limits the rank.
func TestRemark(t *testing.T) {
	ticket := ticketOf(1, policy.ScopeJob, 2)
	ticket.Devices[0].MemoryMiB = 143771
	for _, c := range []struct {
		ceiling float64
		share   string
		memory  string
		want    string
		remark  string
	}{
		{100, "", "", "GPU 0 (GPU-0), 132 of 132 SMs (no cap), 2 ranks on it", ""},
		{100, "60%", "8GB", "GPU 0 (GPU-0), 78 of 132 SMs (59.1 %), 8192 MiB, 2 ranks on it", ""},
		{25, "60%", "", "GPU 0 (GPU-0), 32 of 132 SMs (24.2 %, ceiling 25 %), 2 ranks on it", "share 60% asks for 78 of 132 SMs, and the site's ceiling of 25 % allows 32"},
		{25, "", "", "GPU 0 (GPU-0), 32 of 132 SMs (24.2 %, ceiling 25 %), 2 ranks on it", ""},
		{100, "1%", "", "GPU 0 (GPU-0), 8 of 132 SMs (6.1 %), 2 ranks on it", "share 1% is less than a client can have: it gets 8 of 132 SMs"},
	} {
		ticket.Grant.Ceiling = c.ceiling
		rank := Rank{Task: launch.Task{LocalSize: 2, Source: "test"}}
		for flag, value := range map[string]string{"share": c.share, "mem": c.memory} {
			if value == "" {
				continue
			}
			must.OK(t, rank.Options.Set(flag, value))
		}
		placement := must.Get(Place(ticket, rank))(t)
		var out strings.Builder
		must.OK(t, placement.report(&out, false, false))
		if want := "# rank 0 of 2: " + c.want + "\n"; out.String() != want {
			t.Errorf("share %s, memory %s:\n got  %s want %s", c.share, c.memory, out.String(), want)
		}
		must.Equal(t, fmt.Sprintf("share %s under %v %%", c.share, c.ceiling), placement.Remark, c.remark)
	}
}

// --verbose names the variable from which a part of a GPU comes: a job of a whole GPU that a job with shards has
// submitted inherits it.
func TestWhyAPart(t *testing.T) {
	ticket := ticketOf(1, policy.ScopeJob, 1)
	ticket.Devices[0].MemoryMiB, ticket.Part = 143771, lease.Part{Gres: lease.GresShard, Count: 4}
	placement, err := Place(ticket, Rank{Task: launch.Task{LocalSize: 1, Source: "test"}, Shards: 1, Options: Options{Verbose: true}})
	want := "part 25 % of the GPU by gres/shard, SLURM_SHARDS_ON_NODE=1: at most 32 SMs"
	must.Hold(t, err == nil && slices.Contains(placement.Why, want), "%q, %v, want %s", placement, err, want)
}
