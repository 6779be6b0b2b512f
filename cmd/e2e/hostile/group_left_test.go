// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

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
