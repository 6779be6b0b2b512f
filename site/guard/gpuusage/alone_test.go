// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// alone is a recorder of a job of a user without MPS. The driver lists this process on its GPU.
func alone(t *testing.T, uid int) *recorder {
	t.Helper()
	folder, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { folder.Close() })
	return newRecorder(options{
		lease:  lease.Lease{Job: lease.Job{ID: 7, UID: uint32(uid)}, CreatedAt: time.Now(), NoMPS: true},
		ticket: lease.Ticket{Devices: []lease.TicketDevice{{Device: site.Device{MemoryMiB: 80000}}}},
		folder: folder, interval: time.Second, samplers: []sampler{&ticking{}}, read: nothing,
		processes: func(site.UUID) ([]gpu.Process, error) { return []gpu.Process{{PID: os.Getpid(), MiB: 700}}, nil },
	})
}

// A process of another user counts on a whole GPU. Its program is not in the report, which the job's user reads.
func TestTheProgramOfAnotherUserStaysUnknown(t *testing.T) {
	for uid, known := range map[int]bool{os.Getuid(): true, os.Getuid() + 1: false} {
		r := alone(t, uid)
		r.sampleAll(time.Now())
		rows := r.clients.rows(anyJob, r.ticket.Devices, 0)
		if len(rows) != 1 || rows[0].PeakMiB != 700 || rows[0].Program != "" != known {
			t.Errorf("for uid %d: %+v, want its program: %v", uid, rows, known)
		}
	}
}

// A GPU whose processes the driver cannot list is not a GPU without a process: the report has a gap.
func TestProcessesThatCannotBeListed(t *testing.T) {
	r := alone(t, os.Getuid())
	r.sampleAll(time.Now())
	r.processes = func(site.UUID) ([]gpu.Process, error) { return nil, errors.New("cannot read processes: GPU is lost") }
	r.sampleAll(time.Now().Add(time.Second))
	if samples := r.report.GPUs[0].Samples; len(samples) != 1 || samples[0].Clients != 1 {
		t.Errorf("%+v", samples)
	}
}
