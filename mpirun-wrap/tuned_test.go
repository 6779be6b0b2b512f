// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"errors"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// The share that is set last counts, whether it is tuned or a rule.
func TestTunedAsAnOption(t *testing.T) {
	o, err := ReadOptions(slurm.Env{"SLURM_MPS_SHARE": "tuned"})
	if err != nil || o.Tuned != ofProgram || o.Share != (policy.ShareRule{}) {
		t.Fatalf("%+v, %v", o, err)
	}
	for _, c := range []struct{ value, tuned, share string }{{"even", "", "even"}, {"tuned:app", "app", ""}, {"25%", "", "25%"}} {
		if err := o.Set("share", c.value); err != nil || o.Tuned != c.tuned || o.Share.String() != c.share {
			t.Errorf("%+v: %+v, %v", c, o, err)
		}
	}
	for _, value := range []string{"tuned:", "tuned:./app", "tuned "} {
		if err := o.Set("share", value); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// A tuned share is divided like the share of a flag, within the ceiling, and --verbose names the file. A missing
// tuned share is an error.
func TestTunedPlacement(t *testing.T) {
	ticket := ticketOf(1, policy.ScopeJob, 1)
	ticket.Grant.Ceiling = 25
	rule, err := policy.ParseShare("overlap:3")
	if err != nil {
		t.Fatal(err)
	}
	rank := Rank{Task: slurm.Task{LocalRank: 1, LocalSize: 4}, Options: Options{Tuned: ofProgram, Verbose: true}}
	rank.Tuned = func(_ lease.Ticket, task slurm.Task) (policy.ShareRule, string, error) {
		if task.LocalSize != 4 {
			t.Errorf("%+v", task)
		}
		return rule, "/home/u/tuned", nil
	}
	placement, err := Place(ticket, rank)
	if err != nil || placement.Share.SMs != 32 || !strings.Contains(placement.Remark, "ceiling of 25 % allows 32") {
		t.Errorf("%+v, %v", placement.gpuShare, err)
	}
	if why := strings.Join(placement.Why, "\n"); !strings.Contains(why, "share overlap:3 by SLURM_MPS_SHARE, in place of even (tuned: /home/u/tuned)") {
		t.Error(why)
	}
	none := errors.New("none")
	rank.Tuned = func(lease.Ticket, slurm.Task) (policy.ShareRule, string, error) { return policy.ShareRule{}, "", none }
	if _, err := Place(ticket, rank); !errors.Is(err, none) {
		t.Error(err)
	}
	rank.Tuned = nil // as in the task prolog, which does not know the program
	if placement, err := Place(ticket, rank); err != nil || placement.Share.SMs != 32 || placement.Remark != "" {
		t.Errorf("%+v, %v", placement.gpuShare, err)
	}
}
