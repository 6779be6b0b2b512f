// SPDX-License-Identifier: Apache-2.0

package testnode

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// Only ALLOW_MODE_CHANGES=1 lets a node on real GPUs have a policy that changes their compute modes. Without it the
// node is refused before anything is written, and the policy that tests ask for leaves the modes alone.
func TestARealNodeLeavesTheModesAlone(t *testing.T) {
	for _, said := range []string{"", "0", "2", "11", "1 ", "true", "yes"} {
		t.Setenv("ALLOW_MODE_CHANGES", said)
		for _, policy := range []string{"", Default(), Default(`compute_mode = "exclusive_process"`)} {
			dir := t.TempDir()
			if _, err := Real(dir, "", policy); err == nil || !strings.Contains(err.Error(), "ALLOW_MODE_CHANGES") {
				t.Errorf("with %q a real node may have the policy %q: %v", said, policy, err)
			}
			if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
				t.Errorf("with %q: %v is made, %v", said, made, err)
			}
		}
		must.Equal(t, fmt.Sprintf("with %q the tests' policy has", said), Compute(), Unchanged)
	}
}
