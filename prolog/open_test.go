// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The lease is written before the first change. The modes are set before the daemon starts, and the
// ceiling is set when it runs. At the end the lease is open and the ticket is written.
//
// Contract: R1
func TestAPrologChangesTheNodeInOrder(t *testing.T) {
	n := newNode(t)
	n.Modes[fakenode.GPUB] = site.ModeExclusiveProcess // an admin has set it, so the prolog sets nothing
	n.mustOpen(job(0, 1))
	n.Did(
		"set mode of a to exclusive_process: lease opening, holds a b",
		"make group-7-0: lease opening, holds a b",
		"start daemon of ab as hpc1: lease opening, holds a b",
		"start guard: lease opening, holds a b",
		"set ceiling 100: lease opening, holds a b",
	)
	if got := n.Records(); got != "lease open, holds a b, ticket" {
		t.Errorf("the store has %s", got)
	}
	if n.Modes[fakenode.GPUA] != site.ModeExclusiveProcess || n.Modes[fakenode.GPUB] != site.ModeExclusiveProcess {
		t.Errorf("modes: %v", n.Modes)
	}
}

// The lease has all that an undo needs.
//
// Contract: R2
func TestALeaseNamesWhatIsUndone(t *testing.T) {
	n := newNode(t)
	n.Modes[fakenode.GPUB] = site.ModeExclusiveThread
	n.mustOpen(job(0, 1))
	l := must.Get(n.Store.Read(7))(t)
	if want := []lease.LeasedGPU{
		{UUID: fakenode.GPUA, Minor: 0, OriginalMode: site.ModeDefault, NewMode: site.ModeExclusiveProcess},
		{UUID: fakenode.GPUB, Minor: 1, OriginalMode: site.ModeExclusiveThread, NewMode: site.ModeExclusiveProcess},
	}; !slices.Equal(l.GPUs, want) {
		t.Errorf("GPUs: %+v, want %+v", l.GPUs, want)
	}
	if len(l.Daemons) != 1 || l.Daemons[0].Proc != n.Self || l.Daemons[0].Group != "group-7-0" || l.Guard != n.Self {
		t.Errorf("daemons %+v, guard %v", l.Daemons, l.Guard)
	}
	if !slices.Equal(l.Job.Groups, []uint32{2001, 3000}) || l.Rule != "mps" {
		t.Errorf("groups %v, rule %q", l.Job.Groups, l.Rule)
	}
}

// Before a lease names a GPU, the epilog of another job may still restore its mode. So the prolog reads the mode again
// after that. This mode is restored after the job.
//
// Contract: M2
func TestAModeIsReadAgainWhenTheGPUIsHeld(t *testing.T) {
	n := newNode(t)
	n.Modes[fakenode.GPUA], n.later = site.ModeExclusiveProcess, site.ModeDefault
	n.mustOpen(job(0))
	if l, err := n.Store.Read(7); err != nil || l.GPUs[0].OriginalMode != site.ModeDefault {
		t.Errorf("the lease has %+v, %v", l.GPUs, err)
	}
	if n.Events[0] != "set mode of a to exclusive_process: lease opening, holds a" {
		t.Errorf("done: %q", n.Events)
	}
}

// A grant may ask for a daemon for each GPU, for no guard, and for unchanged modes.
func TestAPrologChangesOnlyWhatTheGrantSays(t *testing.T) {
	n, grant := newNode(t), oneDaemon()
	grant.Scope, grant.Compute, grant.Hold = policy.ScopeGPU, policy.ComputeUnchanged, 0
	if outcome, err := n.open(job(0, 1), granting(grant)); outcome != opened || err != nil {
		t.Fatalf("%s, %v", outcome, err)
	}
	slices.Sort(n.Events) // the daemons start side by side
	n.Did(
		"make group-7-0: lease opening, holds a b",
		"make group-7-1: lease opening, holds a b",
		"set ceiling 100: lease opening, holds a b",
		"set ceiling 100: lease opening, holds a b",
		"start daemon of a as hpc1: lease opening, holds a b",
		"start daemon of b as hpc1: lease opening, holds a b",
	)
	ticket, err := n.Store.ReadTicket(7)
	if err != nil || ticket.Exclusive || len(ticket.Devices) != 2 || ticket.Devices[1].Daemon != 1 {
		t.Errorf("ticket: %+v, %v", ticket, err)
	}
}

// If any step fails, everything is undone: modes, folders, lease and ticket. The error names the step.
//
// Contract: R1
func TestAPrologThatFailsLeavesTheNodeAsBefore(t *testing.T) {
	for _, step := range []string{
		"set mode of a to exclusive_process", "set mode of b to exclusive_process", "start daemon of ab as hpc1",
		"start guard", "set ceiling 100",
	} {
		t.Run(step, func(t *testing.T) {
			n := newNode(t)
			broken := fmt.Errorf("cannot %s: it is broken", step)
			n.Fail[step] = broken
			if outcome, err := n.open(job(0, 1), granting(oneDaemon())); outcome != Failed || !errors.Is(err, broken) {
				t.Errorf("%s, %v", outcome, err)
			}
			n.IsAsBefore()
		})
	}
}

// Contract: M1
func TestAModeThatIsAcceptedAndNotSetIsAFailure(t *testing.T) {
	n := newNode(t)
	n.pretend = true
	outcome, err := n.open(job(0), granting(oneDaemon()))
	want := "cannot set compute mode of " + string(fakenode.GPUA) + ": set to exclusive_process, and it reads default"
	if outcome != Failed || err == nil || err.Error() != want {
		t.Errorf("%s, %v, want %s", outcome, err, want)
	}
	n.Did(
		"set mode of a to exclusive_process: lease opening, holds a",
		"make group-7-0: lease opening, holds a",
		"start daemon of a as hpc1: lease opening, holds a",
		"start guard: lease opening, holds a",
		"undo: lease opening, holds a",
	)
	n.IsAsBefore()
}

// A mode that cannot be set is the node's failure, also if the daemon, which starts at the same time, fails as the user.
// The job is not refused, and no trial as nobody follows.
func TestAModeThatFailsBesideADaemonDrainsTheNode(t *testing.T) {
	n := newNode(t)
	broken := errors.New("cannot set mode: it is broken")
	n.Fail["set mode of a to exclusive_process"], n.asUser = broken, errors.New("it is killed")
	if outcome, err := n.open(job(0), granting(oneDaemon())); outcome != Failed || !errors.Is(err, broken) {
		t.Errorf("%s, %v", outcome, err)
	}
	for _, event := range n.Events {
		if strings.Contains(event, "as nobody") {
			t.Errorf("done: %q", n.Events)
		}
	}
	n.IsAsBefore()
}

// A job must not run without a ticket. If its ticket cannot be written, its lease is undone.
func TestALeaseWithoutATicketIsUndone(t *testing.T) {
	n := newNode(t)
	if err := os.Mkdir(filepath.Join(n.Dir, "tickets", ".7.json.new"), 0o755); err != nil { // no file can be made there
		t.Fatal(err)
	}
	outcome, err := n.open(job(0), granting(oneDaemon()))
	if outcome != Failed || err == nil || !strings.Contains(err.Error(), "cannot write") {
		t.Errorf("%s, %v", outcome, err)
	}
	if last := n.Events[len(n.Events)-2:]; last[0] != "undo: lease open, holds a" {
		t.Errorf("undone when the store had %q", last)
	}
	n.IsAsBefore()
}

// The lease stays if a mode cannot be restored. No policy lets a job run on such a node, and the error names both
// causes.
//
// Contract: R1
func TestALeaseIsKeptIfAModeCannotBeRestored(t *testing.T) {
	n, grant := newNode(t), oneDaemon()
	grant.OnFailure = policy.FailRunWithout
	dead, stuck := errors.New("the daemon died"), errors.New("the driver refuses the mode")
	n.Fail["start daemon of a as hpc1"], n.Fail["set mode of a to default"] = dead, stuck
	outcome, err := n.open(job(0), granting(grant))
	if outcome != Failed || !errors.Is(err, dead) || !errors.Is(err, stuck) {
		t.Errorf("%s, %v", outcome, err)
	}
	if got := n.Records(); got != "lease opening, holds a" {
		t.Errorf("the store has %s", got)
	}
}

// Another job's GPU is not changed, and the other job's lease stays. The error names the job that holds the GPU.
//
// Contract: R6
func TestAGPUOfAnotherJobIsNotChanged(t *testing.T) {
	n, other := newNode(t), job(1)
	other.ID = 8
	n.mustOpen(other)
	before := n.Files()
	outcome, err := n.open(job(0, 1), granting(oneDaemon()))
	if outcome != Failed || err == nil || !strings.Contains(err.Error(), string(fakenode.GPUB)+": job 8 holds it: ") {
		t.Errorf("%s, %v", outcome, err)
	}
	n.Did()
	if n.Modes[fakenode.GPUA] != site.ModeDefault || n.Modes[fakenode.GPUB] != site.ModeExclusiveProcess {
		t.Errorf("modes: %v", n.Modes)
	}
	if after := n.Files(); !slices.Equal(after, before) {
		t.Errorf("the store has %q, want %q", after, before)
	}
}

// Contract: M3
func TestAGPUThatIsOutOfServiceStaysSo(t *testing.T) {
	n := newNode(t)
	n.Modes[fakenode.GPUA] = site.ModeProhibited
	outcome, err := n.open(job(0), granting(oneDaemon()))
	if outcome != Failed || err == nil || !strings.Contains(err.Error(), "an admin took it out of service") {
		t.Errorf("%s, %v", outcome, err)
	}
	n.Did()
	if n.Modes[fakenode.GPUA] != site.ModeProhibited || len(n.Files()) > 0 {
		t.Errorf("mode %s, files %q", n.Modes[fakenode.GPUA], n.Files())
	}
}

// If a daemon works as nobody and fails twice as the user, the node has no failure, and the job is refused.
func TestADaemonThatFailsAsTheUserAloneRefusesTheJob(t *testing.T) {
	n := newNode(t)
	n.asUser = &site.AsUserError{Err: errors.New("cannot start the daemon: it was killed")}
	grant := oneDaemon()
	grant.Hold = 0
	if outcome, err := n.open(job(0), granting(grant)); outcome != refused || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
	attempt := []string{
		"set mode of a to exclusive_process: lease opening, holds a",
		"make group-7-0: lease opening, holds a",
		"start daemon of a as hpc1: lease opening, holds a",
		"undo: lease opening, holds a",
		"set mode of a to default: lease opening, holds a",
	}
	trial := []string{
		"make group-7-0: lease opening, holds a",
		"start daemon of a as nobody: lease opening, holds a",
		"set ceiling 100: lease opening, holds a",
		"undo: lease opening, holds a",
	}
	n.Did(slices.Concat(attempt, trial, attempt)...)
	ticket, err := n.Store.ReadTicket(7)
	reason := "cannot start the daemon: it was killed: it works for others"
	if err != nil || !strings.HasPrefix(ticket.RefusalReason, reason) {
		t.Errorf("ticket: %+v, %v", ticket, err)
	}
	n.IsAsBefore("tickets/7.json")
}

// The undo of a prolog that failed has 30 s of its own, also if the prolog's time is over.
//
// Contract: T1
func TestAnUndoHasItsOwnTime(t *testing.T) {
	n := newNode(t)
	n.asUser = errors.New("cannot start the daemon")
	p, undone := n.prolog(), false
	p.Undo = func(ctx context.Context, l lease.Lease) error {
		limit, ok := ctx.Deadline()
		if left := time.Until(limit); !ok || ctx.Err() != nil || left > 30*time.Second || left < 20*time.Second {
			t.Errorf("the undo has %v, %v", left, ctx.Err())
		}
		undone = true
		return n.undo(ctx, l)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if outcome, err := p.Open(ctx, job(0), granting(oneDaemon())); outcome != Failed || err == nil || !undone {
		t.Errorf("%s, %v, undone %v", outcome, err, undone)
	}
}

// The lease of a trial names no mode, because the undo of the trial must not change a mode that an
// admin sets at that time.
//
// Contract: M2
func TestATrialChangesNoMode(t *testing.T) {
	n := newNode(t)
	n.asUser = &site.AsUserError{Err: errors.New("cannot start the daemon: it was killed")}
	n.Modes[fakenode.GPUB] = site.ModeExclusiveThread
	trials := 0
	state := n.Holds
	n.Holds = func() []string { // at each event
		l, err := n.Store.Read(7)
		if err != nil || l.Job.User != "nobody" {
			return state()
		}
		trials++
		for _, gpu := range l.GPUs {
			if gpu.OriginalMode != "" || gpu.NewMode != "" {
				t.Errorf("the trial's lease names %+v", gpu)
			}
		}
		return state()
	}
	if outcome, err := n.open(job(0, 1), granting(oneDaemon())); outcome != refused || err != nil || trials == 0 {
		t.Errorf("%s, %v, %d events of a trial", outcome, err, trials)
	}
	if n.Modes[fakenode.GPUA] != site.ModeDefault || n.Modes[fakenode.GPUB] != site.ModeExclusiveThread {
		t.Errorf("modes %v", n.Modes)
	}
}

// If a daemon fails as nobody too, the node has a failure, and the prolog fails.
func TestADaemonThatFailsAsNobodyTooFailsTheProlog(t *testing.T) {
	n := newNode(t)
	n.asUser = &site.AsUserError{Err: errors.New("cannot start the daemon: it was killed")}
	n.Fail["start daemon of a as nobody"] = errors.New("cannot start the daemon: no such program")
	if outcome, err := n.open(job(0), granting(oneDaemon())); outcome != Failed || !errors.Is(err, n.asUser) {
		t.Errorf("%s, %v", outcome, err)
	}
	n.IsAsBefore()
}

// If the node's limit of open files is too low for one client, the prolog fails before any change.
//
// Contract: D1
func TestADaemonWithoutRoomForAClientIsNotStarted(t *testing.T) {
	n := newNode(t)
	n.fit = 0
	if outcome, err := n.open(job(0), granting(oneDaemon())); outcome != Failed || err == nil {
		t.Errorf("%s, %v", outcome, err)
	}
	n.Did()
	n.IsAsBefore()
}
