// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
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
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

const (
	gpuA = site.UUID("GPU-aaaaaaaa-0000-0000-0000-000000000001")
	gpuB = site.UUID("GPU-bbbbbbbb-0000-0000-0000-000000000002")
)

// node is a node of fakes with two GPUs, and a real store. What a prolog changes outside of the store is in events,
// each with the state of the records at that moment.
type node struct {
	t     *testing.T
	dir   string
	store *lease.Store
	self  site.Process // a process that runs: all daemons and guards are it

	mu      sync.Mutex
	events  []string
	modes   map[site.UUID]site.Mode
	fail    map[string]error // what an event gives in place of being done, by its text without the state
	pretend bool             // SetMode gives no error and sets nothing
	later   site.Mode        // the mode of gpuA from the moment at which it is claimed, "" for the same
	asUser  error            // what a daemon's start gives for any user but nobody
	pings   error            // what Ping gives
	guard   site.Process     // what Running gives
	fit     int              // what Fit gives
	gres    slurm.Gres
	major   int // compute capability
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
		t: t, dir: dir, store: store, self: self, guard: self, fit: 100, major: 9,
		modes: map[site.UUID]site.Mode{gpuA: site.ModeDefault, gpuB: site.ModeDefault}, fail: map[string]error{},
		gres: slurm.Gres{Node: "n1", Detect: slurm.DetectOff, Entries: []slurm.GresEntry{{Minor: 0}, {Minor: 1}}},
	}
}

// prolog is a prolog on this node.
func (n *node) prolog() Prolog {
	return Prolog{
		Store: n.store, Daemons: daemons{n}, Guards: guards{n}, Groups: controlGroups{n}, GPUs: gpus{n}, Slurm: slurmFiles{n},
		Undo: n.undo, Control: lease.Program{Path: "/usr/bin/control"}, Log: zerolog.Nop(), Clock: time.Now,
		GroupNames: func(context.Context, []uint32) ([]string, error) { return []string{"hpc"}, nil },
	}
}

// open runs a prolog.
func (n *node) open(job slurm.Job, rules policy.Policy) (Outcome, error) {
	n.t.Helper()
	n.events = nil
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return n.prolog().Open(ctx, job, rules)
}

// mustOpen runs the prolog of a job that asks for MPS and gets it.
func (n *node) mustOpen(job slurm.Job) {
	n.t.Helper()
	if outcome, err := n.open(job, granting(oneDaemon())); outcome != Opened || err != nil {
		n.t.Fatalf("the prolog of job %d: %s, %v", job.ID, outcome, err)
	}
}

// event records what is done, with the state of the records of job 7, and returns the failure that is planted for it.
func (n *node) event(format string, values ...any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	text := fmt.Sprintf(format, values...)
	n.events = append(n.events, text+": "+n.records())
	return n.fail[text]
}

// records is what the store has of job 7: "lease opening, claims a b, ticket".
func (n *node) records() string {
	var all []string
	switch l, err := n.store.Read(7); {
	case err == nil:
		all = append(all, "lease "+string(l.Phase))
	case !errors.Is(err, lease.ErrNotFound):
		all = append(all, err.Error())
	}
	var claimed string
	for _, uuid := range []site.UUID{gpuA, gpuB} {
		if job, held, err := n.store.Owner(uuid); err != nil || held && job == 7 {
			claimed += " " + letter(uuid)
		}
	}
	if claimed != "" {
		all = append(all, "claims"+claimed)
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

// isAsBefore checks that the modes are the default, and that the store has nothing but what is named.
func (n *node) isAsBefore(but ...string) {
	n.t.Helper()
	for uuid, mode := range n.modes {
		if mode != site.ModeDefault {
			n.t.Errorf("GPU %s is in mode %s", letter(uuid), mode)
		}
	}
	if left := n.files(); !slices.Equal(left, but) {
		n.t.Errorf("the store has %q, want %q", left, but)
	}
}

// did checks the events. Daemon and guard start side by side, so their order is made the same.
func (n *node) did(want ...string) {
	n.t.Helper()
	for i := 1; i < len(n.events); i++ {
		if strings.HasPrefix(n.events[i-1], "start guard") && strings.HasPrefix(n.events[i], "start daemon") {
			n.events[i-1], n.events[i] = n.events[i], n.events[i-1]
		}
	}
	if !slices.Equal(n.events, want) {
		n.t.Errorf("done:\n  %s\nwant:\n  %s", strings.Join(n.events, "\n  "), strings.Join(want, "\n  "))
	}
}

// job is job 7 of user hpc1, which asks for MPS and has the node's GPUs at these places.
func job(places ...int) slurm.Job {
	return slurm.Job{ID: 7, UID: 2001, GID: 2001, User: "hpc1", Node: "n1", Constraints: []string{"mps"}, GPUs: places}
}

// oneDaemon is a grant of one daemon and a guard.
func oneDaemon() policy.Grant { return policy.DefaultGrant() }

// granting is a policy that gives the grant to each job that asks.
func granting(g policy.Grant) policy.Policy {
	return lawOf(func(policy.Input) (policy.Grant, string, error) { return g, "", nil })
}

// refusing is a policy that gives no job MPS.
func refusing(reason string) policy.Policy {
	return lawOf(func(policy.Input) (policy.Grant, string, error) { return policy.Grant{}, reason, nil })
}

func lawOf(result func(policy.Input) (policy.Grant, string, error)) policy.Policy {
	return policy.Policy{
		Trigger: &policy.Trigger{Constraint: "mps"},
		Bind:    func(r policy.Request) policy.Input { return r },
		Rules:   []policy.Rule{{Name: "mps", When: func(policy.Input) (bool, error) { return true, nil }, Result: result}},
	}
}

// undo does what a lease names, as the epilog does. It keeps the lease if a mode cannot be restored.
func (n *node) undo(_ context.Context, l lease.Lease) error {
	if err := n.event("undo"); err != nil {
		return err
	}
	for _, held := range l.Held {
		if held.NewMode == "" || n.modes[held.UUID] == held.OriginalMode {
			continue
		}
		if err := (gpus{n}).SetMode(held.UUID, held.OriginalMode); err != nil {
			return err
		}
	}
	ctx := context.Background()
	return errors.Join(n.store.RemoveTicket(l.Job.ID), n.store.RemoveDirs(l.Job.ID), n.store.Delete(ctx, l))
}

type daemons struct{ n *node }

func (d daemons) UserGroups(context.Context, lease.Job) ([]uint32, error) {
	return []uint32{2001, 3000}, nil
}

func (d daemons) Start(_ context.Context, job lease.Job, daemon lease.Daemon) (site.Process, error) {
	var of string
	for _, uuid := range daemon.Devices {
		of += letter(uuid)
	}
	if err := d.n.event("start daemon of %s as %s", of, job.User); err != nil {
		return site.Process{}, err
	}
	if job.User != "nobody" && d.n.asUser != nil {
		return site.Process{}, d.n.asUser
	}
	return d.n.self, nil
}

func (d daemons) Configure(_ context.Context, job lease.Job, daemon lease.Daemon, ceiling policy.Percent) error {
	l, err := d.n.store.Read(job.ID)
	named := func(other lease.Daemon) bool { return other.PipeDir == daemon.PipeDir && other.Proc == d.n.self }
	if err != nil || !slices.ContainsFunc(l.Daemons, named) {
		return fmt.Errorf("the lease does not name a daemon that runs: %v, %w", l.Daemons, err)
	}
	return d.n.event("set ceiling %s", ceiling)
}

func (d daemons) Ping(context.Context, lease.Job, lease.Daemon) error { return d.n.pings }

func (d daemons) Fit(int) (int, error) {
	if d.n.fit == 0 {
		return 0, errors.New("cannot start a daemon: no client fits")
	}
	return d.n.fit, nil
}

type guards struct{ n *node }

func (g guards) Start(context.Context, uint32) (site.Process, error) {
	return g.n.self, g.n.event("start guard")
}

func (g guards) Running(uint32) (site.Process, error) { return g.n.guard, nil }

type controlGroups struct{ n *node }

func (c controlGroups) Of(job uint32, k int) (string, error) {
	return fmt.Sprintf("group-%d-%d", job, k), nil
}
func (c controlGroups) Make(dir string) error { return c.n.event("make %s", dir) }

type gpus struct{ n *node }

func (g gpus) Devices() ([]site.Device, error) {
	var all []site.Device
	for minor, uuid := range []site.UUID{gpuA, gpuB} {
		all = append(all, site.Device{UUID: uuid, Name: "NVIDIA H200", Minor: minor, SMs: 132, TPC: 2, MemoryMiB: 143771})
	}
	return all, nil
}

func (g gpus) ByMinor(minor int) (site.Device, error) {
	all, err := g.Devices()
	return all[minor], err
}

func (g gpus) Find(uuid site.UUID) (site.Device, error) {
	all, err := g.Devices()
	i := slices.IndexFunc(all, func(d site.Device) bool { return d.UUID == uuid })
	return all[i], err
}

func (g gpus) Capability(site.UUID) (major, minor int, err error) { return g.n.major, 0, nil }
func (g gpus) Driver() (string, error)                            { return "580.95.05", nil }

func (g gpus) Mode(uuid site.UUID) (site.Mode, error) {
	if _, claimed, _ := g.n.store.Owner(uuid); claimed && uuid == gpuA && g.n.later != "" {
		g.n.modes[uuid], g.n.later = g.n.later, ""
	}
	return g.n.modes[uuid], nil
}

func (g gpus) SetMode(uuid site.UUID, mode site.Mode) error {
	if err := g.n.event("set mode of %s to %s", letter(uuid), mode); err != nil {
		return err
	}
	if mode == site.ModeExclusiveProcess && !g.recorded(uuid) {
		return fmt.Errorf("no lease on file has the mode that %s is in", uuid)
	}
	if !g.n.pretend {
		g.n.modes[uuid] = mode
	}
	return nil
}

// recorded reports whether the lease that holds a GPU has the mode that an undo must restore.
func (g gpus) recorded(uuid site.UUID) bool {
	job, _, _ := g.n.store.Owner(uuid)
	l, err := g.n.store.Read(job)
	return err == nil && slices.ContainsFunc(l.Held, func(held lease.ClaimedGPU) bool {
		return held.UUID == uuid && held.OriginalMode == g.n.modes[uuid]
	})
}

type slurmFiles struct{ n *node }

func (s slurmFiles) Gres(slurm.Job) (slurm.Gres, error)   { return s.n.gres, nil }
func (s slurmFiles) Features(slurm.Job) ([]string, error) { return []string{"mps"}, nil }
