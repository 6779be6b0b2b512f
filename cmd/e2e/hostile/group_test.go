// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"path/filepath"
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

// The user makes the daemon start a program that waits for a file system of the user's, and no signal ends it. The node
// goes on.
func TestHostileProcessThatStaysInTheDaemonsGroup(t *testing.T) {
	a := newAttack(t, "", 1)
	job := a.Job(7, "0")
	dir, stop := a.fileSystem(0)
	t.Cleanup(stop)
	script := filepath.Join(e2e.PublicDir(t), "x")
	a.Write(script, fmt.Sprintf("exec %s unkillable %s\n", a.program, dir))
	survivor := 0
	for tries := 0; survivor == 0 && tries < 5; tries++ {
		a.opens(job)
		out := a.does(e2e.UID, a.program, "inject", fmt.Sprint(a.Ticket(7).Daemons[0].Proc.PID), "/bin/sh", script)
		if _, err := fmt.Sscanf(out, "ready\n%d", &survivor); err != nil {
			t.Logf("the attack does not start: %q", out)
			a.Must(0, job, "epilog")
		}
	}
	must.Have(t, survivor != 0, "the attack does not start")
	run := a.runHook(job, "epilog")
	if _, err := proc.ReadStat(survivor); err != nil {
		t.Fatalf("the process has ended, so nothing is tested: %v", err)
	}
	if run.code != 0 || a.Modes() != "0" {
		t.Errorf("the epilog: code %d, modes %s: %s", run.code, a.Modes(), run.output)
	}
	if want := fmt.Sprintf(`"pid":%d,`, survivor); !strings.Contains(a.Log(), want) {
		t.Errorf("the log does not name process %d:\n%s", survivor, a.Log())
	}
	next := a.Job(8, "0")
	a.Must(0, next, "prolog")
	a.Must(0, next, "epilog")
}
