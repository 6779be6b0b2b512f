// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// recorded is a node that records job 7, which asks for no MPS.
func recorded(t *testing.T) (testNode, testnode.Job) {
	t.Helper()
	policy := "record = \"all\"\n" + testnode.Default()
	p := testNode{e2e.NodeIn(t, e2e.PublicDir(t), policy, node.H200)}
	job := shapes[0].job(p)
	job.Features = ""
	return p, job
}

// If the prolog or the epilog of a recorded job is killed after any of its effects, the next epilog makes the node quiet.
//
// Contract: R1, R9, U5
func TestHooksOfARecordedJobKilledAnywhere(t *testing.T) {
	e2e.JoinSweep(t, "points")
	p, job := recorded(t)
	opened := p.Points(job, "prolog")
	closed := p.Points(job, "epilog")
	must.Have(t, len(opened) >= 10 && len(closed) >= 10,
		"effects: %d of the prolog, %d of the epilog", len(opened), len(closed))
	for _, at := range sample(t, opened, 8) {
		p.Killed(job, "prolog", at, p.Booted)
		p.Must(0, job, "epilog")
		p.Quiet()
	}
	for _, at := range sample(t, closed, 8) {
		p.Killed(job, "epilog", at, func() {
			p.Booted()
			p.Must(0, job, "prolog")
		})
		p.keepsLease()
		p.Must(0, job, "epilog")
		p.Quiet()
	}
}
