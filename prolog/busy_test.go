// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"os"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A user whose processes keep files of four closed jobs is refused, with the reason. The node has not failed, and the
// user gets MPS again when the files are closed.
func TestAUserWhoKeepsFilesIsRefused(t *testing.T) {
	n := newNode(t)
	var files []*os.File
	for id := uint32(101); id <= 104; id++ {
		l := lease.Lease{Job: lease.Job{ID: id, UID: 2001, GID: 2001}}
		must.OK(t, n.Store.MakeDirs(l))
		file, err := os.Create(n.Store.ExchangeDir(id) + "/file")
		must.OK(t, errors.Join(err, n.Store.RemoveDirs(l.Job)))
		files = append(files, file)
		defer file.Close()
	}
	if all, err := n.Store.Busy(); err != nil || len(all) == 0 {
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
	for _, file := range files {
		file.Close()
	}
	n.mustOpen(job(0))
	must.Note(t, n.Store.FreeBusy(func(lease.Busy) bool { return true }))
}
