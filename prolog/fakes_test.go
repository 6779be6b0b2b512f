// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// node is a node whose parts are fakes.
type node struct {
	*fakenode.Node
	pretend  bool         // SetMode gives no error and sets nothing
	later    site.Mode    // the mode of GPU A from its lease on, "" for the same mode
	asUser   error        // the error of a daemon's start as any user except nobody
	pings    error        // what Ping returns
	pinged   func()       // called by Ping
	guard    proc.Process // what Running returns
	fit      int          // what Fit returns
	driver   string       // what Driver returns, with noDriver
	noDriver error
	site     lease.Settings
	gres     slurm.Gres
	noConf   error // what reading Slurm's files fails with
	major    int   // compute capability
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		Node: fakenode.New(t), fit: 100, major: 9, driver: "580.95.05",
		gres: slurm.Gres{Node: "n1", Detect: slurm.DetectOff, Entries: []slurm.GresEntry{{Minor: 0}, {Minor: 1}}},
	}
	n.guard, n.site.Control.Path = n.Self, "/usr/bin/control"
	n.Holds = func() []string {
		var held string
		for _, uuid := range []site.UUID{fakenode.GPUA, fakenode.GPUB} {
			if n.Held(uuid) {
				held += " " + fakenode.Letter(uuid)
			}
		}
		if held == "" {
			return nil
		}
		return []string{"holds" + held}
	}
	return n
}

// prolog is a prolog on this node.
func (n *node) prolog() Prolog {
	return Prolog{
		Store: n.Store, Daemons: daemons{n}, Guards: guards{n}, Groups: fakeGroups{n}, GPUs: gpus{n}, Slurm: slurmFiles{n},
		Undo: n.undo, Site: n.site, Log: zerolog.Nop(), Clock: time.Now,
		Listed:     gpus{n}.Devices,
		GroupNames: func(context.Context, []uint32) ([]string, error) { return []string{"hpc"}, nil },
	}
}

// open runs a prolog.
func (n *node) open(job slurm.Job, rules policy.Policy) (Outcome, error) {
	n.T.Helper()
	n.Events = nil
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	defer n.Order()
	return n.prolog().Open(ctx, job, rules)
}

// mustOpen runs the prolog of a job that asks for MPS and gets it.
func (n *node) mustOpen(job slurm.Job) {
	n.T.Helper()
	if outcome, err := n.open(job, granting(oneDaemon())); outcome != opened || err != nil {
		n.T.Fatalf("the prolog of job %d: %s, %v", job.ID, outcome, err)
	}
}

// job is job 7 of user hpc1, which asks for MPS and has the node's GPUs at these places.
func job(places ...int) slurm.Job {
	return slurm.Job{Job: policy.Job{ID: 7, UID: 2001, GID: 2001, User: "hpc1", Node: "n1", Requested: []string{"mps"}, GPUs: places}}
}

// oneDaemon is a grant of one daemon and a guard.
func oneDaemon() policy.Grant { return policy.DefaultGrant() }

// granting is a policy that gives the grant to each job that asks.
func granting(g policy.Grant) policy.Policy {
	return policyOf(func(policy.Input) (policy.Grant, string, error) { return g, "", nil })
}

// refusing is a policy that gives no job MPS.
func refusing(reason string) policy.Policy {
	return policyOf(func(policy.Input) (policy.Grant, string, error) { return policy.Grant{}, reason, nil })
}

func policyOf(result func(policy.Input) (policy.Grant, string, error)) policy.Policy {
	return policy.Policy{
		Trigger: &policy.Trigger{Constraint: "mps"},
		Bind:    func(r policy.Request) policy.Input { return r },
		Rules:   []policy.Rule{{Name: "mps", When: func(policy.Input) (bool, error) { return true, nil }, Result: result}},
	}
}

// undo undoes what a lease names, as the epilog does. It keeps the lease if a mode cannot be restored.
func (n *node) undo(_ context.Context, l lease.Lease) error {
	if err := n.Event("undo"); err != nil {
		return err
	}
	for _, gpu := range l.GPUs {
		if gpu.NewMode == "" || n.Modes[gpu.UUID] == gpu.OriginalMode {
			continue
		}
		if err := (gpus{n}).SetMode(gpu.UUID, gpu.OriginalMode); err != nil {
			return err
		}
	}
	ctx := context.Background()
	return errors.Join(n.Store.RemoveTicket(l.Job.ID), n.Store.RemoveDirs(l.Job), n.Store.Delete(ctx, l))
}

type daemons struct{ n *node }

func (d daemons) UserGroups(context.Context, lease.Job) ([]uint32, error) {
	return []uint32{2001, 3000}, nil
}

func (d daemons) Start(_ context.Context, job lease.Job, daemon lease.Daemon) (proc.Process, error) {
	var of string
	for _, uuid := range daemon.Devices {
		of += fakenode.Letter(uuid)
	}
	if err := d.n.Event("start daemon of %s as %s", of, job.User); err != nil {
		return proc.Process{}, err
	}
	if job.User != "nobody" && d.n.asUser != nil {
		return proc.Process{}, d.n.asUser
	}
	return d.n.Self, nil
}

func (d daemons) Configure(_ context.Context, job lease.Job, daemon lease.Daemon, limits lease.Limits) error {
	l, err := d.n.Store.Read(job.ID)
	named := func(other lease.Daemon) bool { return other.PipeDir == daemon.PipeDir && other.Proc == d.n.Self }
	if err != nil || !slices.ContainsFunc(l.Daemons, named) {
		return fmt.Errorf("the lease does not name a daemon that runs: %v, %w", l.Daemons, err)
	}
	if limits.MemoryMiB != nil {
		return d.n.Event("set ceiling %s, memory %v", limits.Ceiling, limits.MemoryMiB)
	}
	return d.n.Event("set ceiling %s", limits.Ceiling)
}

func (d daemons) Ping(context.Context, lease.Job, lease.Daemon) error {
	if d.n.pinged != nil {
		d.n.pinged()
	}
	return d.n.pings
}

func (d daemons) Fit(int) (int, error) {
	if d.n.fit == 0 {
		return 0, errors.New("cannot start a daemon: no client fits")
	}
	return d.n.fit, nil
}

type guards struct{ n *node }

func (g guards) Start(context.Context, uint32) (proc.Process, error) {
	return g.n.Self, g.n.Event("start guard")
}

func (g guards) Running(uint32) (proc.Process, error) { return g.n.guard, nil }

type fakeGroups struct{ n *node }

func (c fakeGroups) Of(job uint32, k int) (string, error) {
	return fmt.Sprintf("group-%d-%d", job, k), nil
}
func (c fakeGroups) OfGuard(job uint32) string { return "" }

func (c fakeGroups) Make(dir string) error { return c.n.Event("make %s", dir) }

type gpus struct{ n *node }

func (g gpus) Devices() ([]site.Device, error) {
	var all []site.Device
	for minor, uuid := range []site.UUID{fakenode.GPUA, fakenode.GPUB} {
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
func (g gpus) Driver() (string, error)                            { return g.n.driver, g.n.noDriver }

func (g gpus) Mode(uuid site.UUID) (site.Mode, error) {
	if _, held, _ := g.n.Store.HeldByAnother(uuid, 0); held && uuid == fakenode.GPUA && g.n.later != "" {
		g.n.Modes[uuid], g.n.later = g.n.later, ""
	}
	return g.n.Modes[uuid], nil
}

func (g gpus) SetMode(uuid site.UUID, mode site.Mode) error {
	if err := g.n.Event("set mode of %s to %s", fakenode.Letter(uuid), mode); err != nil {
		return err
	}
	if mode == site.ModeExclusiveProcess && !g.recorded(uuid) {
		return fmt.Errorf("no lease on file has the mode that %s is in", uuid)
	}
	if !g.n.pretend {
		g.n.Modes[uuid] = mode
	}
	return nil
}

// recorded reports whether the lease that holds a GPU has the mode that an undo must restore.
func (g gpus) recorded(uuid site.UUID) bool {
	job, _, _ := g.n.Store.HeldByAnother(uuid, 0)
	l, err := g.n.Store.Read(job)
	return err == nil && slices.ContainsFunc(l.GPUs, func(gpu lease.LeasedGPU) bool {
		return gpu.UUID == uuid && gpu.OriginalMode == g.n.Modes[uuid]
	})
}

type slurmFiles struct{ n *node }

func (s slurmFiles) Gres(slurm.Job) (slurm.Gres, error)   { return s.n.gres, s.n.noConf }
func (s slurmFiles) Features(slurm.Job) ([]string, error) { return []string{"mps"}, s.n.noConf }
