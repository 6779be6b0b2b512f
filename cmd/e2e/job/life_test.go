// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// Contract: D1, M1
func TestAJobsLife(t *testing.T) {
	t.Parallel()
	for _, scope := range []string{"job", "gpu"} {
		t.Run(scope, func(t *testing.T) {
			p := newTestNode(t, testnode.Default(fmt.Sprintf("scope = %q", scope)), node.H200, node.H200, node.H200, node.H200)
			job := p.Job(7, "1,3")
			p.Open(job)
			must.Equal(t, "modes", p.Modes(), "0303")
			ticket := p.Ticket(7)
			daemons := map[string]int{"job": 1, "gpu": 2}[scope]
			if len(ticket.Daemons) != daemons || len(ticket.Devices) != 2 || ticket.Devices[0].Minor != 1 || ticket.Devices[1].Minor != 3 {
				t.Errorf("ticket %+v", ticket)
			}
			for _, d := range ticket.Daemons {
				p.HoldsDaemon(d)
			}
			p.Close(job)
			p.Must(0, job, "epilog")
			p.Clean()
		})
	}
}

// On some machines the control program is a script that runs the real program elsewhere. The prolog starts it with no
// signal blocked, although slurmd's prologs have some blocked, and with none ignored.
func TestAControlProgramThatIsAScript(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	p.ControlIs(fmt.Sprintf("#!/bin/sh\n[ \"$1\" = -d ] && cat /proc/self/status >$CUDA_MPS_LOG_DIRECTORY/status\nexec %s \"$@\"\n", p.Sim.Program("nvidia-cuda-mps-control")))
	p.Open(p.Job(7, "0"))
	status := e2e.Read(t, filepath.Join(p.Ticket(7).Daemons[0].LogDir, "status"))
	for _, field := range []string{"SigBlk:", "SigIgn:"} {
		_, rest, _ := strings.Cut(status, field)
		var signals uint64
		// 1 to 31; libc uses the signals above.
		if _, err := fmt.Sscanf(rest, "%x", &signals); err != nil || signals&0x7fffffff != 0 {
			t.Errorf("%s %x, %v:\n%s", field, signals, err, status)
		}
	}
	p.Close(p.Job(7, "0"))
}

func TestAJobThatAsksForNoMPS(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	job := p.Job(7, "0")
	job.Features = "a100"
	p.Must(0, job, "prolog")
	p.Clean()
	p.Close(job)
}

func TestAPrologAgainAdopts(t *testing.T) {
	p := newTestNode(t, "", node.H200, node.H200)
	job := p.Job(7, "0,1")
	p.Open(job)
	before := p.Ticket(7)
	p.Open(job)
	if after := p.Ticket(7); after.Daemons[0].Proc != before.Daemons[0].Proc {
		t.Errorf("the daemon was %v and is %v", before.Daemons[0].Proc, after.Daemons[0].Proc)
	}
	if !strings.Contains(p.Log(), `"outcome":"adopted"`) {
		t.Errorf("not adopted:\n%s", p.Log())
	}
	p.Close(job)
}

// testNode is the node of one test, with the methods of these tests alone.
type testNode struct{ e2e.Node }

func newTestNode(t *testing.T, policy string, models ...node.Model) testNode {
	t.Helper()
	return testNode{e2e.NewNode(t, policy, models...)}
}

// cluster is a real Slurm, with the methods of these tests alone.
type cluster struct{ *e2e.Cluster }

func newCluster(t *testing.T, policy string, o lab.Options) *cluster {
	t.Helper()
	return &cluster{e2e.NewCluster(t, policy, o)}
}
