// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"strconv"
)

// worldRanks are the launchers' variables of the rank in the whole launch, the innermost launcher first. Package launch
// has the launchers.
var worldRanks = []string{
	"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK", "HOROVOD_RANK", "FLUX_TASK_RANK", "PMIX_RANK",
	"GASNET_RANK", "MPIRUN_RANK",
}

// RankVariables returns the variables that RankOf reads, and the one by which package witness finds the step.
func RankVariables() []string {
	return append([]string{"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_TASK_PID", "TORCHELASTIC_RUN_ID", "RANK"}, worldRanks...)
}

// maxRank is above any rank.
const maxRank = 1 << 32

// RankOf returns a process's rank in its whole launch and its step, for people. A process inherits the variables of
// the process that started it, so the children of a rank have its number. The rank is -1 if no launcher started the
// process. The step is "batch" for a batch script and for an interactive step, and "" outside of Slurm.
func RankOf(env Env) (rank int, step string) {
	step, err := StepOf(env)
	if _, inJob := env["SLURM_JOB_ID"]; inJob && step == "" && err == nil {
		step = "batch"
	}
	var names []string
	if _, torchrun := env["TORCHELASTIC_RUN_ID"]; torchrun {
		names = append(names, "RANK")
	}
	names = append(names, worldRanks...)
	if step != "batch" && step != "" {
		names = append(names, "SLURM_PROCID")
	}
	for _, name := range names {
		value, ok := env[name]
		if n, err := Digits(value); ok && err == nil && n < maxRank {
			return int(n), step
		}
	}
	return -1, step
}

// maxNormalStep is SLURM_MAX_NORMAL_STEP_ID. Above it are steps that no srun made: extern, batch and interactive
// ones.
const maxNormalStep = 0xfffffff0

// StepOf returns the number of the step that an srun made, or "". In a batch script SLURM_STEP_ID is absent, and -5
// with Slurm 26.05. In an interactive step it is 4294967290, and -6 with 26.05 (recorded).
func StepOf(env Env) (string, error) {
	step, ok := env["SLURM_STEP_ID"]
	if !ok {
		return "", nil
	}
	if n, err := strconv.ParseInt(step, 10, 32); err == nil && n < 0 && uint32(n) >= maxNormalStep {
		return "", nil
	}
	n, err := Digits(step)
	if err != nil {
		return "", fmt.Errorf("SLURM_STEP_ID is %s, want a step's number", Quote(step))
	}
	if n >= maxNormalStep {
		return "", nil
	}
	return step, nil
}
