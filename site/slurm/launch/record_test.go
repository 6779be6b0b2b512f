// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// recording reads an environment that Slurm passed to one of its scripts.
func recording(t *testing.T, path string) slurm.Env { return slurm.NewEnv(recorded.Lines(t, path)) }

// recordings lists the recordings that match.
func recordings(t *testing.T, pattern string, atLeast int) []string {
	return recorded.Paths(t, pattern, atLeast)
}
