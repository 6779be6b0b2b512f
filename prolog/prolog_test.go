// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

func TestAJobThatDoesNotAskForMPS(t *testing.T) {
	asksNot := job(0)
	asksNot.Requested = nil
	rulesAlone := granting(oneDaemon())
	rulesAlone.Trigger = nil
	rulesAlone.Rules[0].When = func(policy.Input) (bool, error) { return false, nil }
	for name, rules := range map[string]policy.Policy{"trigger": granting(oneDaemon()), "rules alone": rulesAlone} {
		must.Hold(t, !Requested(asksNot, rules), "%s: it asks", name)
	}
}

// A refused job starts and finds the reason in its ticket. Nothing else is written, and no GPU is changed.
func TestARefusedJobHasATicketAndNothingElse(t *testing.T) {
	for name, c := range map[string]struct {
		plant  func(*node, *slurm.Job, *policy.Policy)
		reason string
	}{
		"by a rule": {
			func(_ *node, _ *slurm.Job, rules *policy.Policy) { *rules = refusing("ask the admins first") },
			"ask the admins first",
		},
		"without a rule": {
			func(_ *node, _ *slurm.Job, rules *policy.Policy) { rules.Rules = nil },
			"no rule of this site's policy is for this job",
		},
		"without a GPU": {
			func(_ *node, j *slurm.Job, _ *policy.Policy) { j.GPUs = nil },
			"job 7 asks for MPS and has no GPU on node n1: submit it with --gres=gpu:N",
		},
		"with a part of a GPU that another program has made exclusive": {
			func(n *node, j *slurm.Job, _ *policy.Policy) {
				j.MPSPercent, n.Modes[fakenode.GPUA] = 25, site.ModeExclusiveProcess
			},
			"is in mode exclusive_process, and Slurm shares it among jobs by gres/mps",
		},
		"on a node whose shards cannot be counted": {
			func(n *node, _ *slurm.Job, _ *policy.Policy) { n.gres.Shared = []string{"shard"} },
			"cannot count gres/shard of GPU 0 of node n1",
		},
		"with a GPU that has no isolation": {
			func(n *node, _ *slurm.Job, _ *policy.Policy) { n.major = 6 },
			"has compute capability 6.0: MPS shares a GPU safely from 7.0 (Volta) on",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, j, rules := newNode(t), job(0), granting(oneDaemon())
			c.plant(n, &j, &rules)
			outcome, err := n.open(j, rules)
			ticket, readErr := n.Store.ReadTicket(7)
			must.Hold(t, outcome == refused && err == nil && readErr == nil && strings.Contains(ticket.RefusalReason, c.reason),
				"%s, %v: the ticket has %q, %v", outcome, err, ticket.RefusalReason, readErr)
			must.Hold(t, !ticket.RunWithoutMPS && ticket.Daemons == nil, "the ticket has more than the reason: %+v", ticket)
			n.Did()
			n.Modes[fakenode.GPUA] = site.ModeDefault // the prolog has set none
			n.IsAsBefore("tickets/7.json")
		})
	}
}

// If the node cannot answer what a rule asks, the prolog fails, and no ticket refuses the job.
func TestALookUpThatFailsIsTheNodesFailure(t *testing.T) {
	n, rules := newNode(t), granting(policy.Grant{OnFailure: policy.FailRunWithout})
	rules.Lookups.Groups = true
	p := n.prolog()
	broken := errors.New("the directory service does not answer")
	p.GroupNames = func(context.Context, []uint32) ([]string, error) { return nil, broken }
	if outcome, err := p.Open(context.Background(), job(0), rules); outcome != Failed || !errors.Is(err, broken) {
		t.Errorf("%s, %v", outcome, err)
	}
	n.Did()
	n.IsAsBefore()
}

// The policy may let a job run on a node that cannot serve it. The node is as before, and the ticket has the cause.
func TestAJobRunsWithoutMPSIfThePolicySays(t *testing.T) {
	n, grant := newNode(t), oneDaemon()
	grant.OnFailure = policy.FailRunWithout
	broken := errors.New("the ceiling reads 50")
	n.Fail["set ceiling 100"] = broken
	outcome, err := n.open(job(0), granting(grant))
	must.Hold(t, outcome == RanWithoutMPS && errors.Is(err, broken), "%s, %v", outcome, err)
	ticket, err := n.Store.ReadTicket(7)
	must.Hold(t, err == nil && ticket.RunWithoutMPS && ticket.RefusalReason == broken.Error() && !ticket.Exclusive,
		"ticket: %+v, %v", ticket, err)
	n.IsAsBefore("tickets/7.json")
}
