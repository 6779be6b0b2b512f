// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
)

// recording reads an environment that Slurm passed to one of its scripts.
func recording(t *testing.T, path string) Env { return NewEnv(recorded.Lines(t, path)) }

// recordings lists the recordings that match.
func recordings(t *testing.T, pattern string, atLeast int) []string {
	return recorded.Paths(t, pattern, atLeast)
}
