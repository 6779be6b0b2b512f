// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"slices"
	"testing"
)

func TestRankOf(t *testing.T) {
	for name, c := range map[string]struct {
		env  Env
		rank int
		step string
	}{
		"outside of Slurm":      {Env{}, -1, ""},
		"a batch script":        {Env{"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, -1, "batch"},
		"an interactive step":   {Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"}, -1, "batch"},
		"srun":                  {Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_PROCID": "12"}, 12, "3"},
		"mpirun in a script":    {Env{"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "5"}, 5, "batch"},
		"torchrun below srun":   {Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "TORCHELASTIC_RUN_ID": "x", "RANK": "2"}, 2, "3"},
		"what is not a number":  {Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_PROCID": "-1"}, -1, "3"},
		"a step that is no one": {Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "x", "SLURM_PROCID": "1"}, -1, ""},
	} {
		if rank, step := RankOf(c.env); rank != c.rank || step != c.step {
			t.Errorf("%s: rank %d of step %q, want %d of %q", name, rank, step, c.rank, c.step)
		}
	}
	if names := RankVariables(); !slices.Contains(names, "PMI_RANK") || slices.Contains(names, "") {
		t.Errorf("variables %q", names)
	}
}
