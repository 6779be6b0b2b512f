// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// testNode is the node of one test, with the methods of these tests alone.
type testNode struct{ e2e.Node }

// cluster is a real Slurm, with the methods of these tests alone.
type cluster struct{ *e2e.Cluster }

func newCluster(t *testing.T, policy string, o lab.Options) *cluster {
	t.Helper()
	return &cluster{e2e.NewCluster(t, policy, o)}
}
