// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// needRelease skips a test if Slurm is older than a release.
func needRelease(t *testing.T, minRelease string) {
	t.Helper()
	if len(lab.Missing()) > 0 {
		return // newCluster skips or fails the test
	}
	release := must.Get(lab.Release(t.Context(), os.Getenv("SLURM_BUNDLE")))(t)
	if release < minRelease {
		t.Skipf("the test needs Slurm %s, and this is %s: SLURM_BUNDLE names another (site/lab/bundle.sh)", minRelease, release)
	}
}

// With PrologFlags=RunInJob the prolog's processes run in the job's containers, and Slurm ends them with the job, on
// cgroup v2 before the epilog. There, the daemon is in a group beside the job's. The node returns to service, and a cancelled rank has a daemon until it is gone.
func TestRunInJob(t *testing.T) {
	needRelease(t, "24.05")
	c := newCluster(t, testnode.Default(`drain_grace = "1s"`), lab.Options{PrologFlags: "RunInJob", ConstrainDevices: true})
	id := c.Batch("srun -n4 "+c.Wrap("info"), "-n4", "--gres=gpu:2")
	c.Ended(id)
	if got := e2e.SMCounts(t, c.Output(id)); !slices.Equal(got, []int{132, 132, 132, 132}) {
		t.Errorf("SMs %v\n%s\n%s", got, c.Output(id), c.Log())
	}
	id = c.Batch("srun -n4 "+c.Wrap("spin -ms 5 -for 60"), "-n4", "--gres=gpu:2")
	c.Running(id)
	daemon := c.First().Ticket(uint32(id)).Daemons[0].Proc
	groups := e2e.Read(t, fmt.Sprintf("/proc/%d/cgroup", daemon.PID))
	inJob, inScope := strings.Contains(groups, fmt.Sprintf("/job_%d", id)), strings.Contains(groups, "slurmstepd.scope/")
	if inJob == inScope {
		t.Errorf("the daemon is in the wrong control group: %s", groups)
	}
	c.Does(c.User, "scancel", strconv.Itoa(id))
	c.Ended(id)
	c.Quiet()
	if daemon.Running() {
		t.Error("the daemon has outlived its job")
	}
}
