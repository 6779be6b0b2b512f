// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// If one mode cannot be restored, the lease is kept. Everything else is undone, and the other mode is restored.
// Another epilog finishes the undo.
//
// Contract: R1
func TestAModeThatCannotBeRestoredKeepsTheLease(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	stuck := errors.New("the driver refuses the mode")
	n.Fail["set mode of a to default"] = stuck
	n.keepsTheLease(n.close(), "lease closing", stuck)
	if n.Modes[fakenode.GPUA] != site.ModeExclusiveProcess || n.Modes[fakenode.GPUB] != site.ModeDefault {
		t.Errorf("modes: %v", n.Modes)
	}
	if line := n.logged(SummaryStep); line == nil || line["closed"] != false {
		t.Errorf("summary: %v", line)
	}
	n.works("set mode of a to default")
	must.Note(t, n.close())
	n.IsAsBefore()
}

// A mode that cannot be read may be the job's mode, so the lease is kept.
func TestAModeThatCannotBeReadKeepsTheLease(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	hung := errors.New("the driver does not answer")
	n.Fail["read mode of b"] = hung
	n.keepsTheLease(n.close(), "lease closing", hung)
}

// Contract: M1
func TestAModeThatIsAcceptedAndNotRestoredKeepsTheLease(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	n.pretend = true
	err := n.close()
	n.keepsTheLease(err, "lease closing")
	want := "cannot restore compute mode of " + string(fakenode.GPUA) + ": set to default, and it reads exclusive_process"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, and should have %q", err, want)
	}
}

// The epilog restores the mode from before the job, whatever it was. If an admin has set another mode since, that
// mode stays.
//
// Contract: M2
func TestTheModeBeforeTheJobIsRestored(t *testing.T) {
	n := newNode(t)
	n.Modes[fakenode.GPUA] = site.ModeExclusiveThread
	n.leased(nil)
	n.Modes[fakenode.GPUB] = site.ModeProhibited // set by an admin
	must.Note(t, n.close())
	if n.Modes[fakenode.GPUA] != site.ModeExclusiveThread || n.Modes[fakenode.GPUB] != site.ModeProhibited {
		t.Errorf("modes: %v", n.Modes)
	}
	if left := n.Files(); len(left) > 0 {
		t.Errorf("the store has %q", left)
	}
}

// If another job holds a GPU by now, its mode is not changed.
//
// Contract: M2, R6
func TestTheModeOfAGPUOfAnotherJobStays(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	l, err := n.Store.Read(7)
	must.OK(t, err)
	other := lease.Lease{Job: lease.Job{ID: 8}, Phase: lease.Opened, GPUs: l.GPUs[1:]}
	err = errors.Join(n.Store.Delete(t.Context(), l), n.Store.Create(t.Context(), other), n.Store.Save(l))
	must.OK(t, err)
	must.Note(t, n.close())
	if n.Modes[fakenode.GPUA] != site.ModeDefault || n.Modes[fakenode.GPUB] != site.ModeExclusiveProcess {
		t.Errorf("modes: %v", n.Modes)
	}
	if job, held, err := n.Store.HeldByAnother(fakenode.GPUB, 7); job != 8 || !held || err != nil {
		t.Errorf("GPU b is job %d's: %t, %v", job, held, err)
	}
}

// A mode that the prolog did not set is not restored, and the driver is not asked for it.
func TestAModeThatWasNotSetIsNotRestored(t *testing.T) {
	n := newNode(t)
	n.leased(func(l *lease.Lease) { l.GPUs[1].OriginalMode, l.GPUs[1].NewMode = "", "" })
	n.Fail["read mode of b"] = errors.New("the driver does not answer")
	must.Note(t, n.close())
	if n.Modes[fakenode.GPUA] != site.ModeDefault || n.Modes[fakenode.GPUB] != site.ModeExclusiveProcess {
		t.Errorf("modes: %v", n.Modes)
	}
}
