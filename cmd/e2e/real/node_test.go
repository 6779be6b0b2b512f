// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// testNode is the node of one test, with the methods of these tests alone.
type testNode struct{ e2e.Node }
