// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

func TestJobsOf(t *testing.T) {
	for content, want := range map[string]string{
		"0::/system.slice/slurmstepd.scope/sB9NM830BDDR00/step_0/user/task_0\n": "sB9NM830BDDR00", // 26.05
		"0::/system.slice/slurmstepd.scope/system\n":                            "",
		"0::/user.slice/slurmstepd.scope/sB9NM830BDDR00\n":                      "",
		"0::/sB9NM830BDDR00/slurm\n":                                            "",

		"0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n":              "42",
		"0::/system.slice/n1_slurmstepd.scope/job_42/step_extern/slurm\n":            "42",
		"9:freezer:/slurm/uid_1000/job_42/step_batch\n8:pids:/\n":                    "42",
		"9:freezer:/\n5:memory:/slurm_n1/uid_1000/job_42/step_0/task_0\n":            "42",
		"0::/system.slice/slurmd.service\n":                                          "",
		"0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_42\n": "", // a user made it
		"0::/job_42/slurm\n": "",
		"1:freezer:/slurm/uid_2001/job_7/step_0\n4:memory:/slurm/uid_2001/job_8/step_0\n": "7 8",
		"0::/system.slice/slurmstepd.scope/job_99999999999999999999/x\n":                  "",
		"": "",
	} {
		if got := strings.Join(JobsOf(proc.ParseGroups(content)), " "); got != want {
			t.Errorf("%q: %q, want %q", content, got, want)
		}
	}
}
