// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"os"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// A user whose processes keep the memory of closed jobs is refused, with the reason. The node has not failed, and the
// user gets MPS again when the memory is free.
func TestAUserWhoKeepsMemoryIsRefused(t *testing.T) {
	n := newNode(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for id := uint32(101); id <= 102; id++ {
		l := lease.Lease{Job: lease.Job{ID: id, UID: 2001, GID: 2001}}
		if err := n.Store.MakeDirs(l); err != nil {
			t.Fatal(err)
		}
		file, err := os.Create(n.Store.ExchangeDir(id) + "/fat")
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(unix.Fallocate(int(file.Fd()), 0, 0, 140<<20), os.Remove(file.Name()),
			unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(int(file.Fd())), nil, 0), file.Close())
		if err := errors.Join(err, n.Store.RemoveDirs(l.Job)); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := n.Store.Held(); err != nil || len(all) == 0 {
		t.Skipf("this process may not mount: %v", err)
	}
	if outcome, err := n.open(job(0), granting(oneDaemon())); outcome != refused || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
	if ticket, err := n.Store.ReadTicket(7); err != nil || ticket.RefusalReason == "" {
		t.Errorf("%+v, %v", ticket, err)
	}
	another := job(1)
	another.ID, another.UID = 8, 2002
	if outcome, err := n.open(another, granting(oneDaemon())); outcome != opened || err != nil {
		t.Errorf("another user: %s, %v", outcome, err)
	}
	unix.Close(pair[0])
	unix.Close(pair[1])
	n.mustOpen(job(0))
	if err := n.Store.FreeHeld(func(lease.Held) bool { return true }); err != nil {
		t.Error(err)
	}
}
