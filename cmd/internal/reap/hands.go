// SPDX-License-Identifier: Apache-2.0

package reap

import (
	"context"
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/node"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// hands are what a reaping changes a node with. A dry run has others, which change nothing.
type hands interface {
	within(func(context.Context) error) error
	take(ctx context.Context, job uint32) (release func(), err error)
	undo(context.Context, lease.Lease) error
	void(context.Context, uint32, []node.Unleased) error
	close()
}

// turnPatience is how long a prolog or an epilog that is at work is waited for. It is never ended: that is an epilog's to do.
const turnPatience = 2 * time.Second

// real changes the node.
type real struct{ *node.Reaping }

func (r real) within(act func(context.Context) error) error { return r.Within(act) }

func (r real) take(ctx context.Context, job uint32) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, turnPatience)
	defer cancel()
	turn, err := r.Journal().Lock(ctx, job)
	if err != nil {
		return nil, err
	}
	return func() { _ = turn.Release() }, nil
}

func (r real) undo(ctx context.Context, l lease.Lease) error { return r.Undo(ctx, l) }

func (r real) void(ctx context.Context, job uint32, daemons []node.Unleased) error {
	return r.Void(ctx, job, daemons)
}

func (r real) close() { r.Close() }

// none changes nothing, and takes no lock.
type none struct{}

func (none) within(act func(context.Context) error) error        { return act(context.Background()) }
func (none) take(context.Context, uint32) (func(), error)        { return func() {}, nil }
func (none) undo(context.Context, lease.Lease) error             { return nil }
func (none) void(context.Context, uint32, []node.Unleased) error { return nil }
func (none) close()                                              {}

// open puts a reaping together. When the site's file has a mistake, that is said.
func open(paths site.Paths, job uint32, dry bool) (*reaper, error) {
	boot, err := site.BootID()
	if err != nil {
		return nil, err
	}
	self, err := site.Self()
	if err != nil {
		return nil, err
	}
	_, standing := node.ReadFacts(paths)
	r := &reaper{paths: paths, journal: lease.Reader(paths.Run(), boot), only: job, self: self, hands: none{}}
	if standing.Wrong != nil {
		r.lines = append(r.lines, Line{Where: "site.hcl", Act: Leave, Why: fmt.Sprintf("it cannot be used: %v: %s", standing.Wrong, standing.Instead("the defaults hold")), Do: "mend it"})
	}
	if dry {
		return r, nil
	}
	opened, err := node.OpenReaping(paths)
	if err != nil {
		return nil, err
	}
	r.hands = real{opened}
	return r, nil
}
