// SPDX-License-Identifier: Apache-2.0

package mpsctl_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// status shows who has which part of a GPU, and audit takes no job on the GPU for a stranger. A daemon that jobs share
// stands once, with the clients of all.
//
// Contract: S2
func TestStatusOfASharedGPU(t *testing.T) {
	t.Parallel()
	for how, want := range map[string][]string{
		"turns": {"job 7  hpc1", "job 8  hpc1", "part     50 of 100 percent of each GPU", "2 jobs"},
		"user":  {"job 7  hpc1", "job 8  hpc1", "served   by shared daemon 1", "shared daemon 1  hpc1", "2 jobs"},
	} {
		t.Run(how, func(t *testing.T) {
			p := newTestNode(t, testnode.Default(fmt.Sprintf("share_gpu = %q", how), `drain_grace = "200ms"`), node.H200, node.H200)
			p.Write(p.Gres(), "Name=gpu File=/dev/nvidia[0-1]\nName=mps Count=200\n")
			for id := uint32(7); id <= 8; id++ {
				job := p.Job(id, "0")
				job.Extra = []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}
				p.Open(job)
				p.Client(id, "spin", "-ms", "5", "-for", "100", "-exit-idle")
			}
			out := p.Ctl("status").Output
			for _, text := range want {
				must.Hold(t, strings.Contains(out, text), "status does not print %q:\n%s", text, out)
			}
			for _, command := range []string{"status", "audit"} {
				var found struct {
					Findings []struct{ Kind, Where string } `json:"findings"`
				}
				out := p.Ctl(command, "--json").Output
				if err := json.Unmarshal([]byte(out), &found); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				for _, f := range found.Findings {
					if f.Kind != "daemon-not-of-a-lease" { // of other tests on this machine
						t.Errorf("%s finds %+v", command, f)
					}
				}
			}
			if out := p.Ctl("reap", "--dry-run").Output; strings.Contains(out, "4026531840") {
				t.Errorf("reap prints a number that Slurm does not know:\n%s", out)
			}
			if how == "user" { // the first sample comes after a second
				p.Until("a report of both jobs", func() bool { return strings.Contains(p.Ctl("report", "7", "--json").Output, `"shared_with":[8]`) })
			}
			for id := uint32(7); id <= 8; id++ {
				p.Must(0, p.Job(id, "0"), "epilog")
			}
			if out := p.Ctl("report", "7", "--json").Output; (how == "user") != strings.Contains(out, `"shared_with":[8]`) {
				t.Errorf("the report of job 7 has\n%s", out)
			}
			p.Clean()
		})
	}
}
