// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// quarter is job 7 or 8 with a quarter of GPU A by gres/mps.
func quarter(id uint32) slurm.Job {
	j := job(0)
	j.ID, j.MPSPercent = id, 25
	return j
}

// together is a policy in which the jobs of one user share a daemon.
func together() policy.Policy {
	g := oneDaemon()
	g.ShareGPU = policy.ShareUser
	return granting(g)
}

func (n *node) mustOpenAs(j slurm.Job, rules policy.Policy) lease.Ticket {
	n.T.Helper()
	if outcome, err := n.open(j, rules); outcome != opened || err != nil {
		n.T.Fatalf("the prolog of job %d: %s, %v", j.ID, outcome, err)
	}
	ticket, err := n.Store.ReadTicket(j.ID)
	if err != nil {
		n.T.Fatal(err)
	}
	return ticket
}

// Two jobs with parts of one GPU have a daemon each, which limits its clients to the job's part. The mode stays.
func TestJobsWithPartsTakeTurns(t *testing.T) {
	n := newNode(t)
	for id := uint32(7); id <= 8; id++ {
		ticket := n.mustOpenAs(quarter(id), granting(oneDaemon()))
		if want := (lease.Part{Gres: "mps", Units: 25, Count: 100}); ticket.Part != want || ticket.Joined != 0 || ticket.Exclusive {
			t.Errorf("job %d: %+v, joined %d, exclusive %t", id, ticket.Part, ticket.Joined, ticket.Exclusive)
		}
		if !slices.ContainsFunc(n.Events, func(e string) bool { return strings.HasPrefix(e, "set ceiling 25, memory [35788]") }) {
			t.Errorf("job %d: %q", id, n.Events)
		}
	}
	if mode := n.Modes[fakenode.GPUA]; mode != site.ModeDefault {
		t.Errorf("mode %s", mode)
	}
	alone := job(0)
	alone.ID = 9
	outcome, err := n.open(alone, granting(oneDaemon()))
	must.Hold(t, outcome == Failed && err != nil && strings.Contains(err.Error(), "holds it: its epilog has not"),
		"a job with the whole GPU beside them: %s, %v", outcome, err)
}

// On a node with shards, the prolog does not know the part, so the daemon has no limit, and others may have the GPU.
func TestAJobOnANodeWithShards(t *testing.T) {
	n := newNode(t)
	n.gres.Shared, n.gres.Units = []string{"shard"}, []slurm.SharedUnits{{Name: "shard", Count: 8}}
	ticket := n.mustOpenAs(job(0), granting(oneDaemon()))
	must.Equal(t, "part", ticket.Part, lease.Part{Gres: "shard", Count: 4})
	if mode := n.Modes[fakenode.GPUA]; mode != site.ModeDefault {
		t.Errorf("mode %s", mode)
	}
}

// The second job of a user joins the first one's daemon. A job of another user gets a daemon of its own.
func TestJobsOfAUserShareADaemon(t *testing.T) {
	n := newNode(t)
	first := n.mustOpenAs(quarter(7), together())
	must.Have(t, lease.IsShared(first.Joined) && len(first.Daemons) == 1,
		"joined %d, daemons %v", first.Joined, first.Daemons)
	second := n.mustOpenAs(quarter(8), together())
	samePipe := func(a, b lease.Daemon) bool { return a.PipeDir == b.PipeDir }
	must.Hold(t, second.Joined == first.Joined && slices.EqualFunc(second.Daemons, first.Daemons, samePipe),
		"joined %d with %v, the first %d with %v", second.Joined, second.Daemons, first.Joined, first.Daemons)
	if slices.ContainsFunc(n.Events, func(e string) bool { return strings.HasPrefix(e, "start") }) {
		t.Errorf("the second job starts something: %q", n.Events)
	}
	other := quarter(9)
	other.UID, other.User = 2002, "hpc2"
	if ticket := n.mustOpenAs(other, together()); ticket.Joined == first.Joined {
		t.Error("another user's job joins")
	}
	if members, err := n.Store.Members(first.Joined); err != nil || !slices.Equal(members, []uint32{7, 8}) {
		t.Errorf("members %v, %v", members, err)
	}
}

// sameDaemon are the attributes in which two jobs that share a daemon may differ, with the reason.
var sameDaemon = map[string]string{
	"compute_mode":   "the mode of a shared GPU stays as it is",
	"share":          "the wrapper and TaskProlog set it for each rank",
	"memory":         "the wrapper and TaskProlog set it for each rank",
	"memory_overlap": "a part of memory",
	"priority":       "the wrapper and TaskProlog set it for each rank",
	"max_clients":    "the wrapper counts the ranks of its job",
	"on_failure":     "it is about the prolog of one job",
	"unplaced":       "TaskProlog obeys it",
}

// other returns a grant that differs from g in one attribute.
func other(t *testing.T, a policy.Attribute, g policy.Grant) policy.Grant {
	t.Helper()
	for _, value := range slices.Concat(a.Words, []string{"2", "3", "7s", "25%", "8G"}) {
		if changed := g; a.Read(value, &changed) == nil && changed != g {
			return changed
		}
	}
	t.Fatalf("no value of %s is known here: add one", a.Name)
	return g
}

// Two jobs that differ in any attribute have daemons of their own, in both orders, unless the attribute is about the
// job's ranks alone. Whatever changes a daemon, its guard or its end keeps the jobs apart.
func TestWhichJobsShareADaemon(t *testing.T) {
	granted := oneDaemon()
	granted.ShareGPU = policy.ShareUser
	left := maps.Clone(sameDaemon)
	for _, a := range policy.Attributes() {
		delete(left, a.Name)
		why := sameDaemon[a.Name]
		changed := other(t, a, granted)
		for _, order := range [][2]policy.Grant{{granted, changed}, {changed, granted}} {
			n := newNode(t)
			var joined [2]uint32
			for i, g := range order {
				j := job(0, 1)
				j.ID, j.MPSPercent = uint32(7+i), 25
				joined[i] = n.mustOpenAs(j, granting(g)).Joined
			}
			if same := joined[0] == joined[1]; same != (why != "") {
				t.Errorf("jobs with another %s share a daemon: %t, reason %q: lease.Settings has what a daemon is made from", a.Name, same, why)
			}
		}
		if why == "" {
			continue
		}
		if before, after := made(t, granted), made(t, changed); before != after {
			t.Errorf("%s changes the shared lease or the daemon, so jobs that differ in it must not share one: %s, not %s", a.Name, after, before)
		}
	}
	for name := range left {
		t.Errorf("there is no attribute %s", name)
	}
}

// made returns what the prolog does for a job, and the shared lease without what names the job's request and time.
func made(t *testing.T, g policy.Grant) string {
	t.Helper()
	n := newNode(t)
	l, err := n.Store.Read(n.mustOpenAs(quarter(7), granting(g)).Joined)
	slices.Sort(n.Events) // some steps run side by side
	l.Request, l.CreatedAt = nil, time.Time{}
	content, failed := json.MarshalIndent([]any{n.Events, l}, "", " ")
	must.OK(t, errors.Join(err, failed))
	return strings.ReplaceAll(string(content), n.Store.JobDir(l.Job.ID), "FOLDER")
}

// What site.hcl and the node give a daemon, and the user's group, keep jobs apart, too.
func TestAJobDoesNotJoin(t *testing.T) {
	for what, change := range map[string]func(n *node, j *slurm.Job){
		"another group":             func(_ *node, j *slurm.Job) { j.GID = 2002 },
		"another user":              func(_ *node, j *slurm.Job) { j.UID = 2002 },
		"another GPU":               func(_ *node, j *slurm.Job) { j.GPUs = []int{1} },
		"another driver":            func(n *node, _ *slurm.Job) { n.driver = "590.44.01" },
		"another control program":   func(n *node, _ *slurm.Job) { n.site.Control.Path = "/opt/control" },
		"another interval":          func(n *node, _ *slurm.Job) { n.site.Interval = 0 },
		"another library of NVML":   func(n *node, _ *slurm.Job) { n.site.NVML = "/opt/nvml" },
		"a lease without limits":    func(n *node, _ *slurm.Job) { n.changeShared(func(l *lease.Lease) { l.Limits = nil }) },
		"a lease that is not open":  func(n *node, _ *slurm.Job) { n.changeShared(func(l *lease.Lease) { l.Phase = lease.Closing }) },
		"nothing":                   func(*node, *slurm.Job) {},
		"another part of the GPU":   func(_ *node, j *slurm.Job) { j.MPSPercent = 50 },
		"another partition and QOS": func(_ *node, j *slurm.Job) { j.Partition, j.QOS = "long", "low" },
	} {
		n := newNode(t)
		n.site.Interval = lease.Duration(10 * time.Second)
		first := n.mustOpenAs(quarter(7), together())
		second := quarter(8)
		change(n, &second)
		got := n.mustOpenAs(second, together()).Joined == first.Joined
		if want := what == "nothing" || strings.HasSuffix(what, "the GPU") || strings.HasSuffix(what, "QOS"); got != want {
			t.Errorf("%s: a job joins: %t, want %t", what, got, want)
		}
	}
}

// changeShared changes the first shared lease on file.
func (n *node) changeShared(change func(*lease.Lease)) {
	n.T.Helper()
	const first = 0xf0000000
	l, err := n.Store.Read(first)
	if err == nil {
		change(&l)
		err = n.Store.Save(l)
	}
	if err != nil {
		n.T.Fatal(err)
	}
}

// From the moment when a prolog has found a shared daemon until the job's lease names it, no epilog can take the shared
// lease's lock. So the daemon does not end between the two.
func TestTheLastMemberCannotLeaveBeforeAJobHasJoined(t *testing.T) {
	n := newNode(t)
	shared := n.mustOpenAs(quarter(7), together()).Joined
	found, looked := false, 0
	n.pinged = func() { found = true }
	p := n.prolog()
	p.Clock = func() time.Time { // each step of a prolog reads it
		if found && !n.Store.IsMember(shared, "8") {
			looked++
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if lock, err := n.Store.Lock(ctx, shared); err == nil {
				t.Error("an epilog can end the daemon before the job's lease names it")
				_ = lock.Release()
			}
		}
		return time.Now()
	}
	if outcome, err := p.Open(t.Context(), quarter(8), together()); outcome != opened || err != nil || looked == 0 {
		t.Errorf("%s, %v, looked %d times", outcome, err, looked)
	}
	must.Hold(t, n.Store.IsMember(shared, "8"), "the job has not joined")
}

// A shared daemon that does not answer is not joined, and stays for its members.
func TestASilentSharedDaemonIsNotJoined(t *testing.T) {
	n := newNode(t)
	first := n.mustOpenAs(quarter(7), together())
	n.pings = errors.New("no answer")
	second := n.mustOpenAs(quarter(8), together())
	must.Hold(t, second.Joined != first.Joined && second.Joined != 0,
		"joined %d, the first %d", second.Joined, first.Joined)
	if _, err := n.Store.Read(first.Joined); err != nil {
		t.Errorf("the first daemon's lease: %v", err)
	}
}

// If the shared daemon cannot be started, nothing is left of the job and of the daemon.
func TestASharedDaemonThatFails(t *testing.T) {
	n := newNode(t)
	n.Fail["start guard"] = errors.New("no memory")
	if outcome, err := n.open(quarter(7), together()); outcome != Failed || err == nil {
		t.Errorf("%s, %v", outcome, err)
	}
	n.IsAsBefore()
}

// The prolog of a job that runs again adopts what the job shares.
func TestAMemberIsAdopted(t *testing.T) {
	n := newNode(t)
	first := n.mustOpenAs(quarter(7), together())
	must.OK(t, n.Store.RemoveTicket(7))
	outcome, err := n.open(quarter(7), together())
	must.Have(t, outcome == adopted && err == nil, "%s, %v", outcome, err)
	if again, err := n.Store.ReadTicket(7); err != nil || again.Joined != first.Joined || len(again.Daemons) != 1 {
		t.Errorf("%+v, %v", again, err)
	}
}

// A prolog that was killed between its lease and the shared one leaves a number. Another job may take it.
func TestANumberOfASharedLeaseThatNeverWas(t *testing.T) {
	n := newNode(t)
	id, lock, err := n.Store.NewShared(context.Background())
	must.OK(t, err)
	other, second, err := n.Store.NewShared(context.Background())
	must.Have(t, err == nil && other != id, "%d and %d, %v", id, other, err)
	must.OK(t, errors.Join(lock.Release(), second.Release()))
	if again, lock, err := n.Store.NewShared(context.Background()); err != nil || again != id {
		t.Errorf("%d, %v", again, err)
	} else if err := lock.Release(); err != nil {
		t.Error(err)
	}
}
