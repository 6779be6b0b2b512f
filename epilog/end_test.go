// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// noProcess is above the largest pid of Linux.
const noProcess = 1 << 23

// Clients that stay after their grace are terminated, one by one, before the daemon quits.
func TestClientsThatStayAreTerminatedBeforeTheDaemonQuits(t *testing.T) {
	n := newNode(t)
	n.leased(nil) // with a grace of 0
	n.clients = []site.Client{{Server: 1, PID: noProcess}, {Server: 1, PID: noProcess + 1}}
	must.Note(t, n.close())
	n.Did(
		"ask for clients: lease closing, folders",
		"terminate client 8388608: lease closing, folders",
		"terminate client 8388609: lease closing, folders",
		"quit daemon: lease closing, folders",
		"kill daemon: lease closing, folders", // processes that the daemon started may be left
		"empty group-7-0: lease closing, folders",
		"end guard: lease closing, folders",
		"set mode of a to default: lease closing, folders",
		"set mode of b to default: lease closing, folders",
	)
	n.IsAsBefore()
}

// A daemon that does not answer, or does not quit, is killed. This is no failure.
func TestADaemonThatDoesNotEndByItselfIsKilled(t *testing.T) {
	for _, step := range []string{"ask for clients", "quit daemon"} {
		t.Run(step, func(t *testing.T) {
			n := newNode(t)
			n.leased(nil)
			n.Fail[step] = site.ErrNoAnswer
			must.Note(t, n.close())
			want := []string{
				"ask for clients: lease closing, folders",
				"quit daemon: lease closing, folders",
				"kill daemon: lease closing, folders",
				"empty group-7-0: lease closing, folders",
				"end guard: lease closing, folders",
				"set mode of a to default: lease closing, folders",
				"set mode of b to default: lease closing, folders",
			}
			if step == "ask for clients" {
				want = append(want[:1], want[2:]...)
			}
			n.Did(want...)
			n.IsAsBefore()
		})
	}
}

// Modes and folders stay while a daemon may still use them. The lease is kept, and another epilog finishes the
// undo.
//
// Contract: R1, R9
func TestNothingElseIsUndoneWhileADaemonRuns(t *testing.T) {
	for _, step := range []string{"kill daemon", "empty group-7-0"} {
		t.Run(step, func(t *testing.T) {
			n := newNode(t)
			n.leased(nil)
			stuck := errors.New("a process does not end")
			n.Fail["quit daemon"], n.Fail[step] = site.ErrNoAnswer, stuck
			n.keepsTheLease(n.close(), "lease closing, folders", stuck)
			if n.Modes[fakenode.GPUA] != site.ModeExclusiveProcess || n.Modes[fakenode.GPUB] != site.ModeExclusiveProcess {
				t.Errorf("modes: %v", n.Modes)
			}
			if last := n.Events[len(n.Events)-1]; last != "end guard: lease closing, folders" {
				t.Errorf("the last step was %q", last)
			}
			n.works(step)
			must.Note(t, n.close())
			n.IsAsBefore()
		})
	}
}

// Processes that only look like the daemon belong to the user. They fail no epilog.
//
// Contract: I3
func TestLookAlikesOfADaemonFailNoEpilog(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	n.Fail["quit daemon"], n.Fail["kill daemon"] = site.ErrNoAnswer, site.ErrImpostors
	must.Note(t, n.close())
	n.IsAsBefore()
}

// The daemon of a lease that never opened is not asked. The lease may not have opened because the daemon does not
// answer.
func TestADaemonThatNoRankKnowsIsOnlyKilled(t *testing.T) {
	n := newNode(t)
	n.leased(func(l *lease.Lease) { l.Phase = lease.Opening })
	must.Note(t, n.close())
	if n.Events[0] != "kill daemon: lease closing, folders" {
		t.Errorf("done: %q", n.Events)
	}
	n.IsAsBefore()
	if line := n.logged(SummaryStep); line != nil {
		t.Errorf("a summary of a job without ranks: %v", line)
	}
}

// A daemon that is gone is not asked. The epilog looks for processes that it has left.
func TestADaemonThatIsGoneIsNotAsked(t *testing.T) {
	n := newNode(t)
	n.leased(func(l *lease.Lease) { l.Daemons[0].Proc = proc.Process{} })
	must.Note(t, n.close())
	n.Did(
		"look for processes: lease closing, folders",
		"empty group-7-0: lease closing, folders",
		"end guard: lease closing, folders",
		"set mode of a to default: lease closing, folders",
		"set mode of b to default: lease closing, folders",
	)
	n.IsAsBefore()
}

// If the lease names no pid because its prolog was killed, the epilog finds the daemon by its properties and ends it.
func TestADaemonThatTheLeaseDoesNotNameIsEnded(t *testing.T) {
	n := newNode(t)
	n.leased(func(l *lease.Lease) { l.Phase, l.Daemons[0].Proc = lease.Opening, proc.Process{} })
	n.leftover = []proc.Process{n.Self}
	must.Note(t, n.close())
	if n.Events[1] != "kill daemon: lease closing, folders" {
		t.Errorf("done: %q", n.Events)
	}
	n.IsAsBefore()
}

// The guard closes a dead client's files while the daemon quits, because both take time.
//
// Contract: G1
func TestAGuardEndsBesideTheDaemon(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	n.beside = "end guard"
	must.Note(t, n.close())
	n.Did(
		"ask for clients: lease closing, folders",
		"end guard: lease closing, folders",
		"quit daemon: lease closing, folders",
		"empty group-7-0: lease closing, folders",
		"set mode of a to default: lease closing, folders",
		"set mode of b to default: lease closing, folders",
	)
	n.IsAsBefore()
}

// A guard stays while the daemon may have clients.
func TestAGuardStaysWhileThereMayBeClients(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	stuck := errors.New("a process does not end")
	n.Fail["ask for clients"], n.Fail["kill daemon"] = site.ErrNoAnswer, stuck
	n.keepsTheLease(n.close(), "lease closing, folders", stuck)
	if n.has("end guard") {
		t.Errorf("done: %q", n.Events)
	}
}

// If a guard does not end, the lease is kept, although the modes are restored.
func TestAGuardThatDoesNotEndKeepsTheLease(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	stuck := errors.New("the guard does not end")
	n.Fail["end guard"] = stuck
	n.keepsTheLease(n.close(), "lease closing", stuck)
	if n.Modes[fakenode.GPUA] != site.ModeDefault || n.Modes[fakenode.GPUB] != site.ModeDefault {
		t.Errorf("modes: %v", n.Modes)
	}
}

// A user can make the daemon start a program that no signal ends. It is neither daemon nor server, so all is undone, the
// log names it, and the node goes on.
func TestAProcessThatStaysInTheDaemonsGroupDrainsNoNode(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	n.Fail["empty group-7-0"] = &site.LeftInGroupError{PIDs: []int{os.Getpid(), noProcess}, Err: errors.New("cannot empty control group")}
	must.Note(t, n.close())
	n.IsAsBefore()
	for _, want := range []string{fmt.Sprintf(`"pid":%d,`, os.Getpid()), `"name":"epilog.test"`, `"user":"hpc1"`} {
		if !strings.Contains(n.log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, n.log.String())
		}
	}
}

// If the daemon itself does not end, or the group cannot be read, nothing is proved.
func TestAGroupThatStaysBesideADaemonIsAFailure(t *testing.T) {
	left := &site.LeftInGroupError{PIDs: []int{os.Getpid()}, Err: errors.New("cannot empty control group")}
	stuck := errors.New("it does not go")
	for name, fail := range map[string]map[string]error{
		"the daemon stays":         {"quit daemon": site.ErrNoAnswer, "kill daemon": stuck, "empty group-7-0": left},
		"the group cannot be read": {"empty group-7-0": stuck},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.leased(nil)
			for event, err := range fail {
				n.Fail[event] = err
			}
			if err := n.close(); !errors.Is(err, stuck) {
				t.Errorf("%v", err)
			}
		})
	}
}
