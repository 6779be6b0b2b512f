// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// bare is a driver with so many GPUs in exclusive-process mode.
type bare []site.UUID

func (b bare) List() ([]gpu.Status, error) {
	var all []gpu.Status
	for i, uuid := range b {
		all = append(all, gpu.Status{Index: i, Device: site.Device{UUID: uuid, SMs: 132, TPC: 2}, Mode: site.ModeExclusiveProcess})
	}
	return all, nil
}

func (b bare) Instance(site.UUID) gpu.Status { return gpu.Status{} }

// thousand is a node with a thousand open leases of a GPU each, all as they should be but for daemons, which they
// have none.
func thousand(tb testing.TB) *Reader {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("records are root's own: run as root")
	}
	run := filepath.Join(tb.TempDir(), "run")
	j, err := lease.Open(run, "boot-1")
	if err != nil {
		tb.Fatal(err)
	}
	var devices bare
	for i := range 1000 {
		uuid := site.UUID(fmt.Sprintf("GPU-%08x", i))
		devices = append(devices, uuid)
		owner := lease.Job{ID: uint32(i + 1), UID: 2001, GID: 2001, User: "hpc1"}
		l := lease.Lease{Job: owner, Phase: lease.Opened, GPUs: []lease.LeasedGPU{{UUID: uuid, OriginalMode: site.ModeDefault, NewMode: site.ModeExclusiveProcess}}}
		t := lease.Ticket{Job: owner, Devices: []lease.TicketDevice{{Device: site.Device{UUID: uuid}}}}
		if err := begin(j, l, t); err != nil {
			tb.Fatal(err)
		}
	}
	return &Reader{Store: j, Run: run, Clock: time.Now, Root: true, Driver: func() (Driver, error) { return devices, nil }}
}

func begin(j *lease.Store, l lease.Lease, t lease.Ticket) error {
	if err := j.Create(context.Background(), l); err != nil {
		return err
	}
	return j.WriteTicket(t)
}

// BenchmarkLook1000 looks at a node with a thousand leases and asks no daemon.
func BenchmarkLook1000(b *testing.B) {
	r := thousand(b)
	for b.Loop() {
		if n, found := r.Inspect(b.Context(), Disagreements); len(n.Jobs) != 1000 || len(found) != 0 {
			b.Fatal(len(n.Jobs), found)
		}
	}
}
