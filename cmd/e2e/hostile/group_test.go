// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A user may trace every process of the user, the job's daemon too, and make it start any program. That program runs
// in the daemon's control group, which is not one of the job's groups, and still ends with the job.
//
// Contract: D5
func TestHostileDaemonThatForks(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the attack is written for amd64")
	}
	if _, err := cgroup.Mount(); err != nil {
		t.Skip(err)
	}
	a := newAttack(t, "", 1)
	job := a.Job(7, "0")
	var survivor int
	for tries := 0; survivor == 0; tries++ {
		a.opens(job)
		daemon := a.Ticket(7).Daemons[0]
		must.Have(t, daemon.Group != "", "the daemon has no control group of its own")
		out := a.does(e2e.UID, a.program, "inject", fmt.Sprint(daemon.Proc.PID), "/bin/sleep", "900")
		if _, err := fmt.Sscanf(out, "ready\n%d", &survivor); err == nil {
			break
		}
		// On a busy machine, a traced process may be gone from its stop for a moment. What it runs then is not known, so the
		// next try has another daemon.
		must.Have(t, tries != 5, "the attack does not start: %q", out)
		t.Logf("the attack does not start: %q", out)
		a.Must(0, job, "epilog")
	}
	a.lives(survivor)
	child := func() string {
		return strings.ReplaceAll(e2e.Read(t, fmt.Sprintf("/proc/%d/cmdline", survivor)), "\x00", " ")
	}
	if !e2e.Comes(func() bool { return child() == "/bin/sleep 900 " }) {
		t.Fatalf("the daemon's child is %q", child())
	}
	a.closes(job)
	if stat, err := proc.ReadStat(survivor); err == nil && stat.Running() {
		t.Errorf("process %d still runs after the job", survivor)
	}
}
