// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// content is the text of the files of job 7.
func (n *node) content() (all [2]string) {
	n.T.Helper()
	for i, name := range []string{"leases/7.json", "tickets/7.json"} {
		content, err := os.ReadFile(filepath.Join(n.Dir, name))
		if err != nil {
			n.T.Fatal(err)
		}
		all[i] = string(content)
	}
	return all
}

// rewrite changes the lease file of job 7.
func (n *node) rewrite(change func(*lease.Lease)) {
	n.T.Helper()
	l, err := n.Store.Read(7)
	if err != nil {
		n.T.Fatal(err)
	}
	change(&l)
	if err := n.Store.Save(l); err != nil {
		n.T.Fatal(err)
	}
}

func TestTheSamePrologAgainAdoptsWhatIsThere(t *testing.T) {
	n := newNode(t)
	n.mustOpen(job(0, 1))
	before := n.content()
	if outcome, err := n.open(job(0, 1), granting(oneDaemon())); outcome != adopted || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
	n.Did()
	if after := n.content(); after != before {
		t.Errorf("the records were %s and are %s", before, after)
	}
}

// If a prolog was killed before it wrote the ticket, the next one writes it.
func TestAnAdoptedLeaseGetsTheTicketThatIsMissing(t *testing.T) {
	n := newNode(t)
	n.mustOpen(job(0))
	before := n.content()
	must.OK(t, n.Store.RemoveTicket(7))
	if outcome, err := n.open(job(0), granting(oneDaemon())); outcome != adopted || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
	n.Did()
	if after := n.content(); after != before {
		t.Errorf("the records were %s and are %s", before, after)
	}
}

// Contract: G1
func TestAnAdoptedLeaseGetsAnotherGuardIfItsGuardIsGone(t *testing.T) {
	n := newNode(t)
	n.mustOpen(job(0))
	n.rewrite(func(l *lease.Lease) { l.Guard = proc.Process{PID: n.Self.PID, Start: 1} })
	n.guard = proc.Process{}
	if outcome, err := n.open(job(0), granting(oneDaemon())); outcome != adopted || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
	n.Did("start guard: lease open, holds a, ticket")
	if l, err := n.Store.Read(7); err != nil || l.Guard != n.Self || l.Phase != lease.Opened {
		t.Errorf("the lease names %v, phase %s, %v", l.Guard, l.Phase, err)
	}
}

// A lease is undone if it is not open, is of other devices, or has a daemon that does not serve. Then the job gets a
// new lease.
func TestALeaseThatCannotBeAdoptedIsUndoneFirst(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(*node)
		undo  string
	}{
		"opening": {
			func(n *node) { n.rewrite(func(l *lease.Lease) { l.Phase = lease.Opening }) },
			"undo: lease opening, holds a, ticket",
		},
		"closing": {
			func(n *node) { n.rewrite(func(l *lease.Lease) { l.Phase = lease.Closing }) },
			"undo: lease closing, holds a, ticket",
		},
		"the daemon is gone": {
			func(n *node) { n.rewrite(func(l *lease.Lease) { l.Daemons[0].Proc.Start++ }) },
			"undo: lease open, holds a, ticket",
		},
		"the daemon does not answer": {
			func(n *node) { n.pings = site.ErrNoAnswer },
			"undo: lease open, holds a, ticket",
		},
		"of another GPU": {
			func(n *node) { n.gres.Entries[0].Minor, n.gres.Entries[1].Minor = 1, 0 },
			"undo: lease open, holds a, ticket",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.mustOpen(job(0))
			c.plant(n)
			if outcome, err := n.open(job(0), granting(oneDaemon())); outcome != opened || err != nil {
				t.Fatalf("%s, %v", outcome, err)
			}
			restored := strings.Replace(c.undo, "undo", "set mode of a to default", 1)
			if n.Events[0] != c.undo || n.Events[1] != restored || len(n.Events) != 7 {
				t.Errorf("done: %q", n.Events)
			}
			device := fakenode.GPUA
			if name == "of another GPU" {
				device = fakenode.GPUB
			}
			l, err := n.Store.Read(7)
			if err != nil || l.Phase != lease.Opened || l.GPUs[0].UUID != device || l.GPUs[0].OriginalMode != site.ModeDefault {
				t.Errorf("lease: %+v, %v", l, err)
			}
		})
	}
}

// A running job keeps what it has, although the policy would deny it now. If no rank can have run, the job is
// refused.
func TestALeaseThatThePolicyDeniesByNowStaysIfRanksMayRun(t *testing.T) {
	n := newNode(t)
	n.mustOpen(job(0))
	if outcome, err := n.open(job(0), refusing("not any more")); outcome != adopted || err != nil {
		t.Errorf("with a ticket: %s, %v", outcome, err)
	}
	n.Did()
	must.OK(t, n.Store.RemoveTicket(7))
	if outcome, err := n.open(job(0), refusing("not any more")); outcome != refused || err != nil {
		t.Errorf("without a ticket: %s, %v", outcome, err)
	}
	if ticket, err := n.Store.ReadTicket(7); err != nil || ticket.RefusalReason != "not any more" {
		t.Errorf("ticket: %+v, %v", ticket, err)
	}
	n.IsAsBefore("tickets/7.json")
}

// A lease that can neither be adopted nor undone stays. In this case no policy lets the job run.
func TestALeaseThatCannotBeUndoneIsKept(t *testing.T) {
	n, grant := newNode(t), oneDaemon()
	grant.OnFailure = policy.FailRunWithout
	n.mustOpen(job(0))
	stuck := errors.New("the driver refuses the mode")
	n.pings, n.Fail["set mode of a to default"] = site.ErrNoAnswer, stuck
	if outcome, err := n.open(job(0), granting(grant)); outcome != Failed || !errors.Is(err, stuck) {
		t.Errorf("%s, %v", outcome, err)
	}
	if got := n.Records(); got != "lease open, holds a, ticket" {
		t.Errorf("the store has %s", got)
	}
}

// No mode and no process of an earlier boot exists. So nothing of its lease is undone, and its files are removed.
//
// Contract: R4
func TestALeaseOfAnEarlierBootIsOnlyRemoved(t *testing.T) {
	n := newNode(t)
	earlier := must.Get(lease.Open(n.Dir, "boot-0"))(t)
	now := n.Store
	n.Store = earlier
	n.mustOpen(job(0, 1))
	n.Store = now
	n.Modes[fakenode.GPUA], n.Modes[fakenode.GPUB] = site.ModeDefault, site.ModeDefault // the boot has reset them
	n.mustOpen(job(1))
	if n.Events[0] != "set mode of b to exclusive_process: lease opening, holds b" {
		t.Errorf("done: %q", n.Events)
	}
	if got := n.Records(); got != "lease open, holds b, ticket" {
		t.Errorf("the store has %s", got)
	}
}

// A torn lease names nothing that could be undone. It stays for an admin, and no policy lets the job run.
//
// Contract: R5
func TestATornLeaseStaysAndFailsTheProlog(t *testing.T) {
	n, grant := newNode(t), oneDaemon()
	grant.OnFailure = policy.FailRunWithout
	path := filepath.Join(n.Dir, "leases", "7.json")
	must.OK(t, os.WriteFile(path, []byte("{"), 0o600))
	j := job(0)
	if outcome, err := n.open(j, granting(grant)); outcome != Failed || !errors.Is(err, lease.ErrCorrupt) {
		t.Errorf("%s, %v", outcome, err)
	}
	n.Did()
	if content, err := os.ReadFile(path); err != nil || string(content) != "{" {
		t.Errorf("the lease is %q, %v", content, err)
	}
}

// If a prolog died before it wrote the ticket and the policy has changed since, the job gets what the new rule grants.
// A job with a ticket keeps what it has, because its ranks may run.
func TestAnEarlierLeaseOfAnotherGrant(t *testing.T) {
	for name, before := range map[string]policy.Grant{"alone": oneDaemon(), "shared": {}} {
		if name == "shared" {
			before = oneDaemon()
			before.ShareGPU = policy.ShareUser
		}
		after := before
		after.Ceiling = 20
		for _, ticket := range []bool{true, false} {
			n := newNode(t)
			n.mustOpenAs(quarter(7), granting(before))
			want := adopted
			if !ticket {
				want = opened
				must.OK(t, n.Store.RemoveTicket(7))
			}
			if outcome, err := n.open(quarter(7), granting(after)); outcome != want || err != nil {
				t.Errorf("%s, ticket %t: %s, %v, want %s", name, ticket, outcome, err, want)
			}
			if set := slices.ContainsFunc(n.Events, func(e string) bool { return strings.HasPrefix(e, "set ceiling 20") }); set == ticket {
				t.Errorf("%s, ticket %t: the daemon gets the new ceiling: %t", name, ticket, set)
			}
		}
	}
}
