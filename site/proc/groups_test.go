// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"slices"
	"testing"
)

func TestParseGroups(t *testing.T) {
	got := ParseGroups("4:memory:/slurm/uid_1/job_7/step_0\n2:cpu,cpuacct:/\n1:name=systemd:/a:b " +
		"c\n0::/system.slice/slurmstepd.scope\nbroken\n3:pids\n5:x:relative\n")
	want := []ControlGroup{{"memory", "/slurm/uid_1/job_7/step_0"}, {"cpu,cpuacct", "/"}, {"name=systemd", "/a:b c"}, {"", "/system.slice/slurmstepd.scope"}}
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i, ofAJob := range []bool{true, false, false, true} {
		if got[i].OfAJob() != ofAJob {
			t.Errorf("%q: of a job: %v", got[i].Path, !ofAJob)
		}
	}
}
