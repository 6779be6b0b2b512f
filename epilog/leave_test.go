// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// sharedLease makes a shared daemon with these members.
func (n *node) sharedLease(members ...uint32) (id uint32) {
	n.T.Helper()
	n.beside = "ask for clients" // the guard's end need not wait for a daemon of job 7
	part := lease.Part{Gres: lease.GresMPS, Units: 25, Count: 100}
	id, lock, err := n.Store.NewShared(n.T.Context())
	if err != nil {
		n.T.Fatal(err)
	}
	n.leased(func(l *lease.Lease) {
		l.Job.ID, l.Part = id, part
		dir := n.Store.DaemonDir(id, 0)
		l.Daemons[0].PipeDir, l.Daemons[0].LogDir = filepath.Join(dir, "pipe"), filepath.Join(dir, "log")
		for i := range l.GPUs {
			l.GPUs[i].NewMode, n.Modes[l.GPUs[i].UUID] = "", l.GPUs[i].OriginalMode
		}
	})
	if err := lock.Release(); err != nil {
		n.T.Fatal(err)
	}
	for _, job := range members {
		n.leased(func(l *lease.Lease) {
			l.Job.ID, l.Part, l.Joined, l.Daemons = job, part, id, nil
			for i := range l.GPUs {
				l.GPUs[i].NewMode, n.Modes[l.GPUs[i].UUID] = "", l.GPUs[i].OriginalMode
			}
		})
	}
	return id
}

// endsDaemon reports whether the last epilog has told a daemon to quit.
func (n *node) endsDaemon() bool { return n.has("quit daemon") }

// One job's epilog ends nothing of the other job. The last one's ends the daemon, and nothing is left.
func TestTheLastMemberEndsTheDaemon(t *testing.T) {
	n := newNode(t)
	id := n.sharedLease(7, 8)
	must.OK(t, n.close())
	if _, err := n.Store.Read(id); err != nil || n.endsDaemon() || !n.Store.HasTicket(8) {
		t.Errorf("the first epilog: the shared lease %v; %q", err, n.Events)
	}
	if n.Store.HasTicket(7) {
		t.Error("the job's ticket is left")
	}
	must.OK(t, n.epilog().Close(t.Context(), 8))
	if !n.endsDaemon() {
		t.Errorf("the last epilog: %q", n.Events)
	}
	n.IsAsBefore()
}

// Two members that end at the same moment: the one that has left names the daemon no more, so the other one ends it.
func TestTwoMembersEndTogether(t *testing.T) {
	n := newNode(t)
	n.sharedLease(7, 8)
	seven, err := n.Store.Read(7)
	must.OK(t, err)
	if err := n.epilog().leave(t.Context(), &seven); err != nil || n.endsDaemon() {
		t.Fatalf("%v, %q", err, n.Events)
	}
	if err := n.epilog().Close(t.Context(), 8); err != nil || !n.endsDaemon() {
		t.Errorf("%v, %q", err, n.Events)
	}
	must.Note(t, n.close())
	n.IsAsBefore()
}

// If the shared daemon cannot be ended, the job's lease stays, and the next epilog of the job ends the daemon.
func TestASharedDaemonThatDoesNotEnd(t *testing.T) {
	n := newNode(t)
	id := n.sharedLease(7)
	broken := errors.New("it does not end")
	n.Fail["empty group-7-0"] = broken
	if err := n.close(); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if members, err := n.Store.Members(id); err != nil || !slices.Equal(members, []uint32{7}) {
		t.Errorf("members %v, %v", members, err)
	}
	n.works("empty group-7-0")
	must.Note(t, n.close())
	n.IsAsBefore()
}

// A job whose shared lease never came to be, because its prolog was killed, has nothing to end.
func TestAMemberOfNothing(t *testing.T) {
	n := newNode(t)
	id := n.sharedLease(7)
	shared, err := n.Store.Read(id)
	must.OK(t, err)
	must.OK(t, errors.Join(n.Store.RemoveTicket(id), n.Store.RemoveDirs(shared.Job), n.Store.DeleteAndUnlock(t.Context(), shared)))
	must.Note(t, n.close())
	n.IsAsBefore()
}

// An admin who runs the epilog of a shared daemon by hand does not end it under its jobs.
func TestASharedDaemonInUseStays(t *testing.T) {
	n := newNode(t)
	id := n.sharedLease(7)
	err := n.epilog().Close(t.Context(), id)
	if err == nil || n.endsDaemon() {
		t.Errorf("%v, %q", err, n.Events)
	}
	if _, err := n.Store.Read(id); err != nil {
		t.Error(err)
	}
}

// A job that leaves a shared daemon has its own report, with the time and the energy until its end. The daemon has
// none, and its summary has nothing that the jobs' summaries have.
//
// Contract: U3
func TestTheReportOfAMember(t *testing.T) {
	needsRoot(t)
	n := newNode(t)
	id := n.sharedLease(7)
	e := n.epilog()
	e.Reports = t.TempDir()
	began, part := time.Now().Add(-20*time.Second), lease.Part{Gres: lease.GresMPS, Units: 25, Count: 100}
	r := usage.Report{Schema: usage.Schema, Job: 7, Begin: began, Part: part,
		Totals:  usage.Totals{Counts: lease.Counts{ClientsSeen: 2, ClientsPeak: 2}},
		GPUs:    []usage.GPU{{EnergyJ: 250, Samples: []usage.Sample{{At: began.Add(10 * time.Second)}}}},
		Clients: []usage.Client{{PID: 1 << 30}, {PID: os.Getpid()}}}
	all := r
	all.Job = id
	folder, err := os.Open(n.Store.JobDir(id))
	must.OK(t, err)
	defer folder.Close()
	err = errors.Join(r.Write(folder, usage.RunningOf(7, id), 0), all.Write(folder, usage.Running, 0),
		n.Store.SaveGuard(id, lease.GuardState{Counts: lease.Counts{ClientsSeen: 2, Pauses: 3}}))
	must.OK(t, err)
	must.OK(t, e.Close(t.Context(), 7))
	got, err := usage.Read(filepath.Join(e.Reports, "7.json"))
	if err != nil || got.EnergyJ < 500 || got.EnergyJ > 1500 || got.End.IsZero() {
		t.Errorf("%d J until %v, %v: want 500 J in 20 s", got.EnergyJ, got.End, err)
	}
	if gone := got.Clients[0]; gone.End.IsZero() || gone.Ending != "" || got.Clients[1].Ending != usage.AtEpilog {
		t.Errorf("%+v: want one that is gone and one that outlived the job", got.Clients)
	}
	if kept, _ := os.ReadDir(e.Reports); len(kept) != 1 {
		t.Errorf("%v are kept, want one report", kept)
	}
	joules, clients, pauses, seconds := 0.0, 0.0, 0.0, 0
	for line := range strings.Lines(n.log.String()) {
		var s map[string]any
		if json.Unmarshal([]byte(line), &s) != nil || s["step"] != SummaryStep {
			continue
		}
		for key, sum := range map[string]*float64{"energy_j": &joules, "clients_seen": &clients, "pauses": &pauses} {
			value, _ := s[key].(float64)
			*sum += value
		}
		if s["seconds"] != nil {
			seconds++
		}
	}
	if joules != float64(got.EnergyJ) || clients != 2 || pauses != 3 || seconds != 1 {
		t.Errorf("%v J, %v clients, %v pauses, %d times in\n%s", joules, clients, pauses, seconds, n.log.String())
	}
}

// While the last member ends the shared daemon, an epilog of the shared lease waits for it and does not end it.
//
// Contract: R7
func TestTheLastMemberSaysThatItCloses(t *testing.T) {
	n := newNode(t)
	id := n.sharedLease(7)
	n.quits = func() {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		var busy *lease.BusyError
		if _, err := n.Store.Lock(ctx, id); !errors.As(err, &busy) || !busy.Closing || busy.Holder != n.Self {
			t.Errorf("another epilog sees %v, %+v", err, busy)
		}
	}
	if err := n.close(); err != nil || !n.endsDaemon() {
		t.Errorf("%v, %q", err, n.Events)
	}
}
