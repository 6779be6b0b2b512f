// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// A ticket lets ranks run. So the prolog writes the ticket last, after it has written the open lease.
func TestTheTicketIsWrittenLast(t *testing.T) {
	n := newNode(t)
	written := watch(t, filepath.Join(n.Dir, "leases"), filepath.Join(n.Dir, "tickets"))
	n.mustOpen(job(0))
	if got, want := written(), []string{"leases", "tickets"}; !slices.Equal(got, want) {
		t.Errorf("written: %v, want %v", got, want)
	}
}

// A ticket allows no more clients than the node's MPS serves, and no more than the policy grants.
func TestATicketHasTheClientsThatMPSServes(t *testing.T) {
	for _, c := range []struct {
		driver        string
		granted, want int
	}{{"580.95.05", 60, 48}, {"590.44.01", 60, 60}, {"590.44.01", 50, 50}, {"580.95.05", 50, 48}, {"", 60, 48}} {
		n, grant := newNode(t), oneDaemon()
		n.driver, grant.MaxClients = c.driver, c.granted
		if c.driver == "" {
			n.noDriver = errors.New("cannot read driver version")
		}
		if outcome, err := n.open(job(0), granting(grant)); outcome != opened || err != nil {
			t.Fatalf("%s, %v", outcome, err)
		}
		got, err := n.Store.ReadTicket(7)
		must.Hold(t, err == nil && got.Grant.MaxClients == c.want,
			"driver %q, granted %d: %d, %v, want %d", c.driver, c.granted, got.Grant.MaxClients, err, c.want)
	}
}

// watch returns a function that lists the folders into which files were renamed since, in order. A folder that is
// written to several times in succession is listed once.
func watch(t *testing.T, folders ...string) func() []string {
	t.Helper()
	fd := must.Get(unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK))(t)
	t.Cleanup(func() { unix.Close(fd) })
	names := map[int32]string{}
	for _, folder := range folders {
		wd := must.Get(unix.InotifyAddWatch(fd, folder, unix.IN_MOVED_TO))(t)
		names[int32(wd)] = filepath.Base(folder)
	}
	return func() (all []string) {
		buffer := make([]byte, 64<<10)
		size := must.Get(unix.Read(fd, buffer))(t)
		for events := bytes.NewReader(buffer[:size]); events.Len() > 0; {
			var e unix.InotifyEvent
			must.OK(t, binary.Read(events, binary.NativeEndian, &e))
			events.Seek(int64(e.Len), 1) // the file's name
			all = append(all, names[e.Wd])
		}
		return slices.Compact(all)
	}
}

// A ticket has what the job's ranks need: devices in Slurm's order with their places, the daemon of each, and the
// grant. It does not have the user's groups, which are for the undo.
func TestATicketHasWhatRanksNeed(t *testing.T) {
	n, grant := newNode(t), oneDaemon()
	grant.Ceiling, grant.MaxClients = 50, 40
	n.fit = 30
	if outcome, err := n.open(job(1, 0), granting(grant)); outcome != opened || err != nil {
		t.Fatalf("%s, %v", outcome, err)
	}
	got := must.Get(n.Store.ReadTicket(7))(t)
	dir := n.Store.DaemonDir(7, 0)
	grant.MaxClients = 30 // the daemon may not open files for more
	want := lease.Ticket{
		Schema: lease.Schema, Boot: "boot-1", Job: lease.Job{ID: 7, UID: 2001, GID: 2001, User: "hpc1"}, Rule: "mps", Grant: grant,
		Exclusive: true, ExchangeDir: n.Store.ExchangeDir(7), ControlProgram: lease.Program{Path: "/usr/bin/control"},
		Daemons: []lease.Daemon{{
			Devices: []site.UUID{fakenode.GPUB, fakenode.GPUA}, PipeDir: filepath.Join(dir, "pipe"), LogDir: filepath.Join(dir, "log"),
			Group: "group-7-0", Proc: n.Self,
		}},
	}
	all, _ := gpus{n}.Devices()
	want.Devices = []lease.TicketDevice{{Device: all[1], Position: 1}, {Device: all[0], Position: 0}}
	must.Hold(t, reflect.DeepEqual(got, want), "the ticket is\n%+v\nwant\n%+v", got, want)
}
