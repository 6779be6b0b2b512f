// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// node is a node whose parts are fakes.
type node struct {
	*fakenode.Node
	logs     string // the folder in which logs are kept
	log      bytes.Buffer
	pretend  bool           // SetMode gives no error and sets nothing
	clients  []site.Client  // of each daemon
	leave    bool           // the clients end after the first question
	leftover []proc.Process // processes of daemons that do not run any more
	beside   string         // the event that the daemon waits for before it quits, "" for none
	quits    func()         // is called when a daemon quits, nil for nothing
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: fakenode.New(t), logs: filepath.Join(t.TempDir(), "logs")}
	n.Holds = func() (all []string) {
		if _, err := os.Lstat(n.Store.JobDir(7)); err == nil {
			all = append(all, "folders")
		}
		return all
	}
	return n
}

// epilog is an epilog on this node.
func (n *node) epilog() Epilog {
	n.log.Reset()
	return Epilog{
		Store: n.Store, Daemons: daemons{n}, Guards: guards{n}, Groups: fakeGroups{n}, GPUs: gpus{n}, Logs: n.logs,
		Log:          zerolog.New(zerolog.SyncWriter(&n.log)),
		RerunCommand: func(job lease.Job) string { return fmt.Sprintf("epilog of job %d", job.ID) },
	}
}

// close runs the epilog of job 7.
func (n *node) close() error {
	n.T.Helper()
	n.Events = nil
	ctx, cancel := context.WithTimeout(n.T.Context(), 20*time.Second)
	defer cancel()
	return n.epilog().Close(ctx, 7)
}

// leased makes the node as a prolog of job 7 leaves it: a lease with both GPUs and one daemon, and a ticket. It
// applies change to the lease before it writes the lease.
func (n *node) leased(change func(*lease.Lease)) lease.Lease {
	n.T.Helper()
	dir := n.Store.DaemonDir(7, 0)
	l := lease.Lease{
		Job: lease.Job{ID: 7, UID: 2001, GID: 2001, User: "hpc1"}, Phase: lease.Opened, Rule: "mps", CreatedAt: time.Now(),
		Daemons: []lease.Daemon{{
			Devices: []site.UUID{fakenode.GPUA, fakenode.GPUB}, Group: "group-7-0", Proc: n.Self,
			PipeDir: filepath.Join(dir, "pipe"), LogDir: filepath.Join(dir, "log"),
		}},
	}
	for minor, uuid := range []site.UUID{fakenode.GPUA, fakenode.GPUB} {
		gpu := lease.LeasedGPU{UUID: uuid, Minor: minor, OriginalMode: n.Modes[uuid], NewMode: site.ModeExclusiveProcess}
		l.GPUs = append(l.GPUs, gpu)
		n.Modes[uuid] = site.ModeExclusiveProcess
	}
	if change != nil {
		change(&l)
	}
	err := errors.Join(n.Store.Create(n.T.Context(), l), n.Store.MakeDirs(l))
	if err := errors.Join(err, n.Store.WriteTicket(lease.Ticket{Job: l.Job})); err != nil {
		n.T.Fatal(err)
	}
	return l
}

// works removes a planted failure. It takes the lock, because an epilog that has ended may still ask the driver.
func (n *node) works(event string) {
	n.Lock()
	defer n.Unlock()
	delete(n.Fail, event)
}

// keepsTheLease checks that an epilog failed with the causes, named what to do, and left these records.
func (n *node) keepsTheLease(err error, records string, causes ...error) {
	n.T.Helper()
	for _, cause := range causes {
		if !errors.Is(err, cause) {
			n.T.Errorf("the error %v does not have the cause %v", err, cause)
		}
	}
	const repair = "the lease is kept; to repair: nvidia-smi -i " + string(fakenode.GPUA) + " -c DEFAULT; nvidia-smi -i " +
		string(fakenode.GPUB) + " -c DEFAULT; epilog of job 7"
	if err == nil || !strings.HasSuffix(err.Error(), repair) {
		n.T.Errorf("the error is %v, and should end with %q", err, repair)
	}
	if got := n.Records(); got != records {
		n.T.Errorf("the store has %s, want %s", got, records)
	}
}

// logged returns the line of the log that is marked as a step, nil if there is none.
func (n *node) logged(step string) map[string]any {
	n.T.Helper()
	for line := range strings.Lines(n.log.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			n.T.Fatal(err)
		}
		if fields["step"] == step {
			return fields
		}
	}
	return nil
}

type daemons struct{ n *node }

func (d daemons) Clients(context.Context, lease.Job, lease.Daemon) ([]site.Client, error) {
	if d.n.leave && d.n.has("ask for clients") {
		return nil, nil
	}
	return d.n.clients, d.n.Event("ask for clients")
}

func (d daemons) Terminate(_ context.Context, _ lease.Job, _ lease.Daemon, client site.Client) error {
	return d.n.Event("terminate client %d", client.PID)
}

func (d daemons) Quit(ctx context.Context, _ lease.Job, _ lease.Daemon) error {
	for d.n.beside != "" && !d.n.has(d.n.beside) && wait.Sleep(ctx, time.Millisecond) {
	}
	if d.n.quits != nil {
		d.n.quits()
	}
	return d.n.Event("quit daemon")
}
func (d daemons) Kill(context.Context, lease.Job, lease.Daemon) error {
	return d.n.Event("kill daemon")
}

func (d daemons) Processes(lease.Job, lease.Daemon) ([]proc.Process, error) {
	return d.n.leftover, d.n.Event("look for processes")
}

type guards struct{ n *node }

// End takes longer than the end of the daemon, so that the order of the events is known.
func (g guards) End(ctx context.Context, _ uint32) error {
	for g.n.beside == "" && strings.HasPrefix(g.n.Records(), "lease") && !g.n.has("empty group-7-0") && wait.Sleep(ctx, time.Millisecond) {
	}
	return g.n.Event("end guard")
}

// has reports whether there was an event.
func (n *node) has(event string) bool {
	n.Lock()
	defer n.Unlock()
	return slices.ContainsFunc(n.Events, func(done string) bool { return strings.HasPrefix(done, event+":") })
}

type fakeGroups struct{ n *node }

func (c fakeGroups) Empty(_ context.Context, dir string) (int, error) {
	return 0, c.n.Event("empty %s", dir)
}

type gpus struct{ n *node }

func (g gpus) Mode(uuid site.UUID) (site.Mode, error) {
	g.n.Lock()
	defer g.n.Unlock()
	return g.n.Modes[uuid], g.n.Fail["read mode of "+fakenode.Letter(uuid)]
}

func (g gpus) SetMode(uuid site.UUID, mode site.Mode) error {
	if err := g.n.Event("set mode of %s to %s", fakenode.Letter(uuid), mode); err != nil || g.n.pretend {
		return err
	}
	g.n.Lock()
	defer g.n.Unlock()
	g.n.Modes[uuid] = mode
	return nil
}
