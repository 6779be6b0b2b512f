// SPDX-License-Identifier: Apache-2.0

package mpsctl_test

import (
	"fmt"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

func TestSharedLook(t *testing.T) {
	for _, how := range []string{"turns", "user"} {
		p := newTestNode(t, testnode.Default(fmt.Sprintf("share_gpu = %q", how)), node.H200, node.H200)
		p.Write(p.Gres(), "Name=gpu File=/dev/nvidia[0-1]\nName=mps Count=200\n")
		for id := uint32(7); id <= 8; id++ {
			job := p.Job(id, "0")
			job.Extra = []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}
			p.Must(0, job, "prolog")
			p.Client(id, "spin", "-ms", "5", "-for", "100", "-exit-idle")
		}
		t.Log(p.Ctl("status").Output)
		t.Log(p.Ctl("status", "--json").Output)
		t.Log(p.Ctl("audit").Output)
		t.Log(p.Ctl("metrics").Output)
		t.Log(p.Ctl("report", "7").Output)
		t.Log(p.Ctl("reap", "--dry-run").Output)
		for id := uint32(7); id <= 8; id++ {
			p.Must(0, p.Job(id, "0"), "epilog")
		}
		t.Log(p.Ctl("report", "8").Output)
	}
}
