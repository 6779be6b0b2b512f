// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// Each repair names an odd --root in a word of the shell's.
func TestRepairsBelowAnOddRoot(t *testing.T) {
	const odd = "; touch 1:2\n&~ x"
	n := good()
	n.paths = site.Paths{Root: "/it's: odd" + odd}
	n.run = n.paths.Run()
	n.policy.Err, n.config.Err = errors.New("x"), errors.New("x")
	n.busy = []lease.Busy{{UID: 7, Job: 9}}
	n.Jobs[0].stepless = true
	n.Jobs[0].Guard = &Guard{PID: 5, GuardState: lease.GuardState{Unheld: 1}}
	n.Jobs = append(n.Jobs,
		Job{ID: 1, Phase: Unreadable, leased: true, err: errors.New("x")},
		Job{ID: 2, Phase: Opening, leased: true},
		Job{ID: 3, ticketErr: errors.New("x")},
		Job{ID: 4, Refused: "x", dir: true, ticket: &lease.Ticket{}},
		Job{ID: 5, dir: true, ticketErr: lease.ErrNotFound})
	n.census[0].Process = proc.Process{PID: 100, Start: 9}
	n.census[0].PipeDir = n.run + "/jobs/6/0/pipe"
	named := 0
	for _, f := range diagnose(n) {
		if strings.Contains(f.Fix, odd) || strings.Contains(f.Fix, "\n") {
			t.Errorf("%s: %q", f.Kind, f.Fix)
		}
		if strings.Contains(f.Fix, `\012`) {
			named++
		}
		e2e.CanBePasted(t, f.Fix)
	}
	if named < 11 {
		t.Errorf("%d repairs name the root", named)
	}
}
