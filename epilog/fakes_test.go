// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

const (
	gpuA = site.UUID("GPU-aaaaaaaa-0000-0000-0000-000000000001")
	gpuB = site.UUID("GPU-bbbbbbbb-0000-0000-0000-000000000002")
)

// node is a node of fakes with two GPUs, and a real store. What an epilog changes outside of the store is in events,
// each with the state of the records at that moment.
type node struct {
	t     *testing.T
	dir   string // of the store
	logs  string // where logs are kept
	store *lease.Store
	self  site.Process // a process that runs: all daemons are it
	log   bytes.Buffer

	mu       sync.Mutex
	events   []string
	modes    map[site.UUID]site.Mode
	fail     map[string]error // what an event gives in place of being done, by its text without the state
	pretend  bool             // SetMode gives no error and sets nothing
	clients  []site.Client    // of each daemon
	leftover []site.Process   // of daemons that do not run any more
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("leases are root's own: run as root")
	}
	dir := filepath.Join(t.TempDir(), "run")
	store, err := lease.Open(dir, "boot-1")
	if err != nil {
		t.Fatal(err)
	}
	self, err := site.CurrentProcess()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // each job may have a file system of its own, which keeps the folder
		jobs, err := store.Dirs()
		for _, job := range jobs {
			err = errors.Join(err, store.RemoveDirs(job))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return &node{
		t: t, dir: dir, logs: filepath.Join(t.TempDir(), "logs"), store: store, self: self, fail: map[string]error{},
		modes: map[site.UUID]site.Mode{gpuA: site.ModeDefault, gpuB: site.ModeDefault},
	}
}

// epilog is an epilog on this node.
func (n *node) epilog() Epilog {
	n.log.Reset()
	return Epilog{
		Store: n.store, Daemons: daemons{n}, Guards: guards{n}, Groups: controlGroups{n}, GPUs: gpus{n}, Logs: n.logs,
		Log:          zerolog.New(&n.log),
		RerunCommand: func(job lease.Job) string { return fmt.Sprintf("epilog of job %d", job.ID) },
	}
}

// close runs the epilog of job 7.
func (n *node) close() error {
	n.t.Helper()
	n.events = nil
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	return n.epilog().Close(ctx, 7)
}

// leased makes the node as a prolog of job 7 leaves it: a lease with both GPUs and one daemon, and a ticket. Change is
// made to the lease before it is written.
func (n *node) leased(change func(*lease.Lease)) lease.Lease {
	n.t.Helper()
	dir := n.store.DaemonDir(7, 0)
	l := lease.Lease{
		Job: lease.Job{ID: 7, UID: 2001, GID: 2001, User: "hpc1"}, Phase: lease.Opened, Rule: "mps", CreatedAt: time.Now(),
		Daemons: []lease.Daemon{{
			Devices: []site.UUID{gpuA, gpuB}, Group: "group-7-0", Proc: n.self,
			PipeDir: filepath.Join(dir, "pipe"), LogDir: filepath.Join(dir, "log"),
		}},
	}
	for minor, uuid := range []site.UUID{gpuA, gpuB} {
		held := lease.ClaimedGPU{UUID: uuid, Minor: minor, OriginalMode: n.modes[uuid], NewMode: site.ModeExclusiveProcess}
		l.Held = append(l.Held, held)
		n.modes[uuid] = site.ModeExclusiveProcess
	}
	if change != nil {
		change(&l)
	}
	err := errors.Join(n.store.Create(n.t.Context(), l), n.store.MakeDirs(l))
	if err := errors.Join(err, n.store.WriteTicket(lease.Ticket{Job: l.Job})); err != nil {
		n.t.Fatal(err)
	}
	return l
}

// event records what is done, with the state of the records of job 7, and returns the failure that is planted for it.
func (n *node) event(format string, values ...any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	text := fmt.Sprintf(format, values...)
	n.events = append(n.events, text+": "+n.records())
	return n.fail[text]
}

// works takes a planted failure back. The driver may still be asked by an epilog that has ended.
func (n *node) works(event string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.fail, event)
}

// records is what the store has of job 7: "lease closing, claims, folders, ticket".
func (n *node) records() string {
	var all []string
	switch l, err := n.store.Read(7); {
	case err == nil:
		all = append(all, "lease "+string(l.Phase))
	case !errors.Is(err, lease.ErrNotFound):
		all = append(all, err.Error())
	}
	if job, held, err := n.store.Owner(gpuA); err != nil || held && job == 7 {
		all = append(all, "claims")
	}
	if _, err := os.Lstat(n.store.JobDir(7)); err == nil {
		all = append(all, "folders")
	}
	if _, err := n.store.ReadTicket(7); !errors.Is(err, lease.ErrNotFound) {
		all = append(all, "ticket")
	}
	if all == nil {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// letter is a short name of a GPU: "a" or "b".
func letter(uuid site.UUID) string { return string(uuid)[4:5] }

// files are all files of the store but the lock, which stays.
func (n *node) files() []string {
	n.t.Helper()
	var all []string
	err := filepath.WalkDir(n.dir, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(n.dir, path)
		if err == nil && name != "lock" && (!entry.IsDir() || strings.Count(name, "/") > 0) {
			all = append(all, name)
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}

// isAsBefore checks that the modes are the default, and that the store is empty.
func (n *node) isAsBefore() {
	n.t.Helper()
	for uuid, mode := range n.modes {
		if mode != site.ModeDefault {
			n.t.Errorf("GPU %s is in mode %s", letter(uuid), mode)
		}
	}
	if left := n.files(); len(left) > 0 {
		n.t.Errorf("the store has %q", left)
	}
}

// keepsTheLease checks that an epilog has failed with the causes, says what to do, and has left the records as they are
// named.
func (n *node) keepsTheLease(err error, records string, causes ...error) {
	n.t.Helper()
	for _, cause := range causes {
		if !errors.Is(err, cause) {
			n.t.Errorf("the error %v does not have the cause %v", err, cause)
		}
	}
	const repair = "the lease is kept; to repair: nvidia-smi -i " + string(gpuA) + " -c DEFAULT; nvidia-smi -i " +
		string(gpuB) + " -c DEFAULT; epilog of job 7"
	if err == nil || !strings.HasSuffix(err.Error(), repair) {
		n.t.Errorf("the error is %v, and should end with %q", err, repair)
	}
	if got := n.records(); got != records {
		n.t.Errorf("the store has %s, want %s", got, records)
	}
}

// did checks the events.
func (n *node) did(want ...string) {
	n.t.Helper()
	if !slices.Equal(n.events, want) {
		n.t.Errorf("done:\n  %s\nwant:\n  %s", strings.Join(n.events, "\n  "), strings.Join(want, "\n  "))
	}
}

// logged returns the line of the log that is marked as a step, nil if there is none.
func (n *node) logged(step string) map[string]any {
	n.t.Helper()
	for line := range strings.Lines(n.log.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			n.t.Fatal(err)
		}
		if fields["step"] == step {
			return fields
		}
	}
	return nil
}

type daemons struct{ n *node }

func (d daemons) Clients(context.Context, lease.Job, lease.Daemon) ([]site.Client, error) {
	return d.n.clients, d.n.event("ask for clients")
}

func (d daemons) Terminate(_ context.Context, _ lease.Job, _ lease.Daemon, client site.Client) error {
	return d.n.event("terminate client %d", client.PID)
}

func (d daemons) Quit(context.Context, lease.Job, lease.Daemon) error {
	return d.n.event("quit daemon")
}
func (d daemons) Kill(context.Context, lease.Job, lease.Daemon) error {
	return d.n.event("kill daemon")
}

func (d daemons) Processes(lease.Job, lease.Daemon) ([]site.Process, error) {
	return d.n.leftover, d.n.event("look for processes")
}

type guards struct{ n *node }

func (g guards) End(context.Context, uint32) error { return g.n.event("end guard") }

type controlGroups struct{ n *node }

func (c controlGroups) Empty(_ context.Context, dir string) (int, error) {
	return 0, c.n.event("empty %s", dir)
}

type gpus struct{ n *node }

func (g gpus) Mode(uuid site.UUID) (site.Mode, error) {
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	return g.n.modes[uuid], g.n.fail["read mode of "+letter(uuid)]
}

func (g gpus) SetMode(uuid site.UUID, mode site.Mode) error {
	if err := g.n.event("set mode of %s to %s", letter(uuid), mode); err != nil || g.n.pretend {
		return err
	}
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	g.n.modes[uuid] = mode
	return nil
}
