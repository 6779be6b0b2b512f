// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// toldVariable is how a task prolog tells mpirun-wrap which reason it has printed. The value is a hash of the reason and
// the step. mpirun-wrap does not print that reason again, and removes the variable. It is not an option of a user.
const toldVariable = "SLURM_MPS_TOLD"

// reasonOf is the text of an error without the rank's number, so that all ranks that fail alike have the same one.
func reasonOf(err error, task slurm.Task) string {
	return strings.Replace(err.Error(), fmt.Sprintf("rank %d ", task.LocalRank), "", 1)
}

// hashOf is the value of toldVariable for a reason in a step. The step is SLURM_STEP_ID as Slurm sets it.
func hashOf(env slurm.Env, step, reason string) string {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s %s %s", env["SLURM_JOB_ID"], step, reason)
	return fmt.Sprintf("%016x", hash.Sum64())
}

// told reports whether the task prolog of this step has printed the reason, or that of the batch script, whose steps
// inherit the variable. The value of another step does not count, because a shell of srun --pty may be hours old.
func told(value string, env slurm.Env, reason string) bool {
	return value != "" && (value == hashOf(env, env["SLURM_STEP_ID"], reason) || toldByBatch(value, env, reason))
}

// toldByBatch is told for the batch script alone. Its SLURM_STEP_ID is absent, and -5 with Slurm 26.05.
func toldByBatch(value string, env slurm.Env, reason string) bool {
	return value == hashOf(env, "", reason) || value == hashOf(env, "-5", reason)
}

// without returns an environment without a variable.
func without(env []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
}
