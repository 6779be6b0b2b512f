// SPDX-License-Identifier: Apache-2.0

package slurm

import "slices"

// RankVariables returns the variables that RankOf reads.
func RankVariables() []string {
	names := []string{"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "RANK"}
	for _, l := range launchers {
		if l.world != "" {
			names = append(names, l.world)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// RankOf returns a process's rank in its whole launch and its step, for people. A process inherits the variables of
// the process that started it, so the children of a rank have its number. The rank is -1 if no launcher started the
// process. The step is "batch" for a batch script and for an interactive step, and "" outside of Slurm.
func RankOf(env Env) (rank int, step string) {
	step, err := stepOf(env)
	if _, inJob := env["SLURM_JOB_ID"]; inJob && step == "" && err == nil {
		step = "batch"
	}
	var names []string
	if _, torchrun := env["TORCHELASTIC_RUN_ID"]; torchrun {
		names = append(names, "RANK")
	}
	for _, l := range launchers {
		names = append(names, l.world)
	}
	if step != "batch" && step != "" {
		names = append(names, "SLURM_PROCID")
	}
	for _, name := range names {
		value, ok := env[name]
		if n, err := parseDigits(value); ok && name != "" && err == nil && n < localMax*localMax {
			return int(n), step
		}
	}
	return -1, step
}
