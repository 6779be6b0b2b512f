// SPDX-License-Identifier: Apache-2.0

// Package fakenode is a node for unit tests of prolog and epilog. Its store is real. For daemons and modes it only
// records events.
package fakenode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The node has two GPUs.
const (
	GPUA = site.UUID("GPU-aaaaaaaa-0000-0000-0000-000000000001")
	GPUB = site.UUID("GPU-bbbbbbbb-0000-0000-0000-000000000002")
)

// Letter is the short name of a GPU: "a" or "b".
func Letter(uuid site.UUID) string { return string(uuid)[4:5] }

// Node is a node on which job 7 begins or ends.
type Node struct {
	T     *testing.T
	Dir   string // of the store
	Store *lease.Store
	Self  proc.Process // a process that runs; all daemons and guards have this process number

	sync.Mutex
	Events []string // what was done outside of the store, each with the records at that moment
	Modes  map[site.UUID]site.Mode
	Fail   map[string]error // the error of an event, by the event's text without the records; then the event is not done
	// Holds returns what job 7 has in the store beside its lease and its ticket.
	Holds func() []string
}

// New makes a node whose GPUs are in mode default. It needs root.
func New(t *testing.T) *Node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("leases are root's own: run as root")
	}
	dir := filepath.Join(t.TempDir(), "run")
	store := must.Get(lease.Open(dir, "boot-1"))(t)
	self := must.Get(proc.Current())(t)
	t.Cleanup(func() { // a job may have its own file system, which would keep the folder
		jobs, err := store.Dirs()
		for _, job := range jobs {
			err = errors.Join(err, store.RemoveDirs(lease.Job{ID: job}))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return &Node{
		T: t, Dir: dir, Store: store, Self: self, Fail: map[string]error{},
		Modes: map[site.UUID]site.Mode{GPUA: site.ModeDefault, GPUB: site.ModeDefault},
	}
}

// Event records an event and returns the error that Fail has for it.
func (n *Node) Event(format string, values ...any) error {
	n.Lock()
	defer n.Unlock()
	text := fmt.Sprintf(format, values...)
	n.Events = append(n.Events, text+": "+n.Records())
	return n.Fail[text]
}

// Records returns what the store has of job 7: "lease opening, holds a b, ticket".
func (n *Node) Records() string {
	var all []string
	switch l, err := n.Store.Read(7); {
	case err == nil:
		all = append(all, "lease "+string(l.Phase))
	case !errors.Is(err, lease.ErrNotFound):
		all = append(all, err.Error())
	}
	all = append(all, n.Holds()...)
	if _, err := n.Store.ReadTicket(7); !errors.Is(err, lease.ErrNotFound) {
		all = append(all, "ticket")
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// Held reports whether job 7 holds a GPU alone.
func (n *Node) Held(uuid site.UUID) bool {
	job, held, err := n.Store.HeldByAnother(uuid, 0)
	return err != nil || held && job == 7
}

// Files returns all files of the store except the lock file, which stays.
func (n *Node) Files() []string {
	n.T.Helper()
	var all []string
	must.OK(n.T, filepath.WalkDir(n.Dir, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(n.Dir, path)
		if err == nil && name != "lock" && (!entry.IsDir() || strings.Count(name, "/") > 0) {
			all = append(all, name)
		}
		return err
	}))
	return all
}

// IsAsBefore checks that the modes are the default and that the store has only the named files.
func (n *Node) IsAsBefore(but ...string) {
	n.T.Helper()
	for uuid, mode := range n.Modes {
		if mode != site.ModeDefault {
			n.T.Errorf("GPU %s is in mode %s", Letter(uuid), mode)
		}
	}
	if left := n.Files(); !slices.Equal(left, but) {
		n.T.Errorf("the store has %q, want %q", left, but)
	}
}

// Did checks the events.
func (n *Node) Did(want ...string) {
	n.T.Helper()
	n.Order()
	if !slices.Equal(n.Events, want) {
		n.T.Errorf("done:\n  %s\nwant:\n  %s", strings.Join(n.Events, "\n  "), strings.Join(want, "\n  "))
	}
}

// Order puts the events that happen side by side into one order.
func (n *Node) Order() {
	for end := len(n.Events); end > 1; end-- {
		for i := 1; i < end; i++ {
			if now := rank(n.Events[i]); now >= 0 && now < rank(n.Events[i-1]) {
				n.Events[i-1], n.Events[i] = n.Events[i], n.Events[i-1]
			}
		}
	}
}

// together are the beginnings of events that have no order among themselves.
var together = []string{"set mode of a", "set mode of b", "make group", "start daemon", "start guard"}

func rank(event string) int {
	return slices.IndexFunc(together, func(beginning string) bool { return strings.HasPrefix(event, beginning) })
}
