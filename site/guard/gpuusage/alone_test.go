// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// idle is a GPU without a process.
type idle struct{}

func (idle) Read() (gpu.Activity, error) {
	return gpu.Activity{Sample: usage.Sample{SMUtil: 12.5, SMActive: 12.5}, Source: gpu.FromGPM}, nil
}

// alone is the recorder of job 7 without MPS, whose GPUs have these processes and which has a part of each.
func alone(tb testing.TB, part lease.Part, gpus int, list func(site.UUID) ([]gpu.Process, error)) *recorder {
	tb.Helper()
	folder, err := os.Open(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { folder.Close() })
	o := options{
		lease:  lease.Lease{Job: lease.Job{ID: 7, UID: uint32(os.Getuid())}, NoMPS: true, Part: part, CreatedAt: time.Now()},
		folder: folder, interval: time.Second, processes: list, log: zerolog.Nop(),
		read: func(pid int) clientenv.Environment {
			job := uint32(7)
			if pid != os.Getpid() {
				job = 8
			}
			return clientenv.Environment{Rank: -1, Job: job, Shards: part.Count / 4}
		},
	}
	for n := range gpus {
		d := site.Device{UUID: site.UUID(fmt.Sprintf("GPU-%d", n)), Minor: n, Name: "NVIDIA H200", SMs: 132, MemoryMiB: 143771}
		o.ticket.Devices = append(o.ticket.Devices, lease.TicketDevice{Device: d})
		o.samplers = append(o.samplers, idle{})
	}
	return newRecorder(o)
}

// The clients of a job without MPS are the processes that the driver lists. On a part of a GPU, those of other jobs are
// none. One that has ended has an end, and no exit.
func TestProcessesOfAJobWithoutMPS(t *testing.T) {
	for _, part := range []lease.Part{{}, {Gres: lease.GresShard, Count: 4}} {
		other := exec.Command("sleep", "1000")
		must.OK(t, other.Start())
		listed := []gpu.Process{{PID: os.Getpid(), MiB: 500}, {PID: other.Process.Pid, MiB: 300}, {PID: 1 << 30, MiB: 9}}
		r := alone(t, part, 2, func(uuid site.UUID) ([]gpu.Process, error) {
			if uuid == "GPU-1" {
				return nil, errors.New("the GPU is lost")
			}
			return listed, nil
		})
		r.sample(time.Now())
		other.Process.Kill()
		_ = other.Wait()
		r.sample(time.Now().Add(time.Second))
		want := 2
		if part.Shared() {
			want = 1
		}
		got, err := usage.Read(filepath.Join(r.folder.Name(), usage.Running))
		if err != nil || !got.NoMPS || got.ClientsSeen != want || got.ClientsPeak != want || len(got.Clients) != want {
			t.Fatalf("part %v: %+v, %v, want %d processes", part, got, err, want)
		}
		if c := got.Clients[0]; c.PID != os.Getpid() || c.GPU != 0 || c.PeakMiB != 500 || !c.End.IsZero() || c.Outside {
			t.Errorf("part %v: %+v", part, c)
		}
		if samples := got.GPUs[0].Samples; samples[0].Clients != want || len(got.GPUs[1].Samples) != 0 {
			t.Errorf("part %v: %+v", part, got.GPUs)
		}
		if want == 2 && (got.Clients[1].End.IsZero() || got.Clients[1].Exit != "" || got.Clients[1].Ending != "") {
			t.Errorf("one that has ended: %+v", got.Clients[1])
		}
		if active := got.Mean().SMActive; part.Shared() != (active < 0) {
			t.Errorf("part %v: SM active %v", part, active)
		}
	}
}

// aloneOf is a recorder of a job of a user without MPS. The driver lists this process on its GPU.
func aloneOf(t *testing.T, uid int) *recorder {
	t.Helper()
	r := alone(t, lease.Part{}, 1, func(site.UUID) ([]gpu.Process, error) {
		return []gpu.Process{{PID: os.Getpid(), MiB: 700}}, nil
	})
	r.lease.Job.UID = uint32(uid)
	return r
}

// A process of another user counts on a whole GPU. Its program is not in the report, which the job's user reads.
func TestTheProgramOfAnotherUserStaysUnknown(t *testing.T) {
	for uid, known := range map[int]bool{os.Getuid(): true, os.Getuid() + 1: false} {
		r := aloneOf(t, uid)
		r.sampleAll(time.Now())
		rows := r.clients.rows(anyJob, r.ticket.Devices, 0)
		must.Hold(t, len(rows) == 1 && rows[0].PeakMiB == 700 && rows[0].Program != "" == known,
			"for uid %d: %+v, want its program: %v", uid, rows, known)
	}
}

// A GPU whose processes the driver cannot list is not a GPU without a process: the report has a gap.
func TestProcessesThatCannotBeListed(t *testing.T) {
	r := aloneOf(t, os.Getuid())
	r.sampleAll(time.Now())
	r.processes = func(site.UUID) ([]gpu.Process, error) { return nil, errors.New("cannot read processes: GPU is lost") }
	r.sampleAll(time.Now().Add(time.Second))
	if samples := r.report.GPUs[0].Samples; len(samples) != 1 || samples[0].Clients != 1 {
		t.Errorf("%+v", samples)
	}
}
