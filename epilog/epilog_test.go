// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func TestAnEpilogOfAJobWithoutALeaseChangesNothing(t *testing.T) {
	n := newNode(t)
	must.Note(t, n.close())
	n.Did("end guard: nothing") // a prolog may have been killed before it wrote the lease
	n.IsAsBefore()
	if line := n.logged(SummaryStep); line != nil {
		t.Errorf("a summary of no job: %v", line)
	}
}

func TestAnEpilogOfARefusedJobRemovesItsTicket(t *testing.T) {
	n := newNode(t)
	must.OK(t, n.Store.WriteTicket(lease.Ticket{Job: lease.Job{ID: 7}, RefusalReason: "no"}))
	must.Note(t, n.close())
	n.IsAsBefore()
}

// The ticket is removed first and the lease last. The daemon ends before the guard, and the guard ends before the
// modes are restored.
//
// Contract: R1, G1
func TestAnEpilogUndoesInOrder(t *testing.T) {
	n := newNode(t)
	n.leased(func(l *lease.Lease) { l.GuardGroup = "group-7-guard" })
	must.Note(t, n.close())
	n.Did(
		"ask for clients: lease closing, folders",
		"quit daemon: lease closing, folders",
		"empty group-7-0: lease closing, folders",
		"end guard: lease closing, folders",
		"set mode of a to default: lease closing, folders",
		"set mode of b to default: lease closing, folders",
		"empty group-7-guard: lease closing",
	)
	n.IsAsBefore()
}

// Contract: R9
func TestClosingTwiceIsClosingOnce(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	must.Note(t, errors.Join(n.close(), n.close()))
	n.Did("end guard: nothing")
	n.IsAsBefore()
}

// An undo by a prolog keeps the lock of the job, because the prolog continues. An epilog removes the lock.
func TestAnUndoKeepsTheLockOfItsCaller(t *testing.T) {
	n := newNode(t)
	l := n.leased(nil)
	lock, err := n.Store.Lock(t.Context(), 7)
	must.OK(t, err)
	defer lock.Release()
	must.Note(t, n.epilog().Undo(t.Context(), l))
	if left := n.Files(); !slices.Equal(left, []string{"locks/7"}) {
		t.Errorf("the store has %q", left)
	}
}

// No mode and no process of an earlier boot exists. So the files are removed, and nothing is undone.
//
// Contract: R4
func TestALeaseOfAnEarlierBootIsOnlyRemoved(t *testing.T) {
	n := newNode(t)
	now := n.Store
	earlier, err := lease.Open(n.Dir, "boot-0")
	must.OK(t, err)
	n.Store = earlier
	n.leased(nil)
	n.Store = now
	must.Note(t, n.close())
	n.Did()
	if n.Modes[fakenode.GPUA] != site.ModeExclusiveProcess || len(n.Files()) > 0 {
		t.Errorf("mode %s, files %q", n.Modes[fakenode.GPUA], n.Files())
	}
}

// Contract: R5
func TestATornLeaseStaysAndFailsTheEpilog(t *testing.T) {
	n := newNode(t)
	path := filepath.Join(n.Dir, "leases", "7.json")
	must.OK(t, os.WriteFile(path, []byte("{"), 0o600))
	if err := n.close(); !errors.Is(err, lease.ErrCorrupt) {
		t.Error(err)
	}
	n.Did()
	if content, err := os.ReadFile(path); err != nil || string(content) != "{" {
		t.Errorf("the lease is %q, %v", content, err)
	}
}

// An epilog that cannot record that it has begun continues, because its removals make room on a full file system.
func TestAnEpilogThatCannotWriteUndoesAllTheSame(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	if err := os.Mkdir(filepath.Join(n.Dir, "leases", ".7.json.new"), 0o755); err != nil { // no file can be made there
		t.Fatal(err)
	}
	must.Note(t, n.close())
	if n.Events[0] != "ask for clients: lease open, folders" {
		t.Errorf("done: %q", n.Events)
	}
	n.IsAsBefore()
}

// A recorder of a job without MPS that does not end keeps its lease, and the epilog succeeds. The next one closes the
// lease. An undo by reap fails, so that reap does not report what it has not done.
func TestARecorderThatDoesNotEndDrainsNoNode(t *testing.T) {
	n := newNode(t)
	n.beside = "end guard"
	l := n.leased(func(l *lease.Lease) {
		l.NoMPS, l.Daemons = true, nil
		for i := range l.GPUs {
			l.GPUs[i].NewMode, n.Modes[l.GPUs[i].UUID] = "", l.GPUs[i].OriginalMode
		}
	})
	stuck := errors.New("it does not go")
	n.Fail["end guard"] = stuck
	if err := n.close(); err != nil || !strings.Contains(n.log.String(), "the node is not drained") {
		t.Errorf("%v: %s", err, n.log.String())
	}
	if got, err := n.Store.Read(7); err != nil || got.Phase != lease.Closing {
		t.Errorf("the lease is %+v, %v", got, err)
	}
	l.Phase = lease.Closing
	if err := n.epilog().Undo(t.Context(), l); !errors.Is(err, stuck) {
		t.Errorf("the undo reports %v", err)
	}
	n.works("end guard")
	must.Note(t, n.close())
	n.IsAsBefore()
}

// holdsLock is the variable with the folder of a store. The test's own program then holds the lock of job 7 until its
// stdin ends. closes says whether it closes the job.
const holdsLock, closes = "EPILOG_TEST_HOLDS_LOCK", "EPILOG_TEST_CLOSES"

// An epilog ends a prolog that still runs, and never another epilog.
//
// Contract: R7
func TestWhatAnEpilogEnds(t *testing.T) {
	if folder := os.Getenv(holdsLock); folder != "" {
		holdLock(t, folder)
		return
	}
	for _, closing := range []bool{true, false} {
		n := newNode(t)
		n.leased(nil)
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestWhatAnEpilogEnds$")
		cmd.Env = append(os.Environ(), holdsLock+"="+n.Dir, fmt.Sprintf("%s=%v", closes, closing))
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		must.OK(t, errors.Join(err1, err2, cmd.Start()))
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "holds\n" {
			t.Fatalf("%q, %v", line, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond) // it waits a third of its time, then decides
		lock, err := n.epilog().lockJob(ctx, 7)
		cancel()
		var busy *lease.BusyError
		if closing && (!errors.As(err, &busy) || busy.Holder.PID != cmd.Process.Pid) {
			t.Errorf("beside another epilog: %v", err)
		}
		if !closing && err != nil {
			t.Errorf("beside a prolog: %v", err)
		}
		if lock != nil {
			must.Note(t, lock.Release())
		}
		in.Close()
		if err := cmd.Wait(); (err == nil) != closing {
			t.Errorf("closing %v: the process ended with %v", closing, err)
		}
	}
}

func holdLock(t *testing.T, folder string) {
	store, err := lease.Open(folder, "boot")
	must.OK(t, err)
	lock, err := store.Lock(t.Context(), 7)
	must.OK(t, err)
	if os.Getenv(closes) == "true" {
		lock.MarkClosing()
	}
	fmt.Println("holds")
	_, _ = io.Copy(io.Discard, os.Stdin)
	must.OK(t, lock.Release())
}
