// SPDX-License-Identifier: Apache-2.0

// This file has the recorder of a job without MPS (docs/decisions.md, 65).

package gpuusage

import (
	"context"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// recordAlone records a job without MPS, without a guard and a ticket, until SIGTERM.
func (l line) recordAlone(o options, store *lease.Store) error {
	asked, ended := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(asked, syscall.SIGTERM)
	go func() {
		<-asked
		close(ended)
	}()
	driver, err := gpu.OpenTimeout(l.library, gaugeTimeout) // without a daemon, the GPU may sleep
	if err != nil {
		return err
	}
	if o.folder, err = osfile.OpenFolder(store.JobDir(l.job)); err != nil {
		return err
	}
	for _, held := range o.lease.GPUs {
		device, err := driver.Find(held.UUID)
		if err != nil { // its figures are not known
			device = site.Device{UUID: held.UUID, Minor: held.Minor}
		}
		o.ticket.Devices = append(o.ticket.Devices, lease.TicketDevice{Device: device})
	}
	o.interval *= time.Duration(1 + len(o.lease.GPUs)/5) // at most 0.1 % of a core (docs/decisions.md, 65)
	o.read, o.others, o.processes = readerOf(o.lease), store.Others, driver.Processes
	o.samplers = samplers(driver, o.ticket.Devices)
	newRecorder(o).run(nil, ended)
	return nil
}

// findProcesses makes clients of the processes that the driver lists on a GPU, and returns their memory. If several
// jobs may have the GPU, a client is one that has the job's number in its environment. The job's user reads the report,
// so it has no program of another user, whose processes /proc may hide from that user.
func (r *recorder) findProcesses(n int, now time.Time) (map[int]int, error) {
	found, err := r.processes(r.report.GPUs[n].UUID)
	memory := map[int]int{}
	for _, p := range found {
		memory[p.PID] = p.MiB
	}
	bound, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	for _, s := range proc.ReadStats(bound, slices.Sorted(maps.Keys(memory))) {
		if s.Err != nil || r.clients.find(func(c *client) bool { return c.Proc == s.Process }) != nil {
			continue
		}
		if r.lease.Part.Shared() && r.read(s.PID).Job != r.lease.Job.ID {
			continue
		}
		r.clients.tell(usage.Event{Proc: s.Process, GPUs: 1 << n, Begin: now})
		uids, err := proc.UIDs(s.PID)
		if c := r.clients.find(func(c *client) bool { return c.Proc == s.Process }); c != nil &&
			(err != nil || uids[0] != r.lease.Job.UID) {
			c.program = ""
		}
	}
	return memory, err
}
