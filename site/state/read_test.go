// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A wrapper may hold the files of a process that has died, and the driver goes on to list it.
func TestAProcessThatHasEndedIsNotOnTheGPU(t *testing.T) {
	dead := exec.Command("true")
	must.OK(t, dead.Run())
	var n Node
	(&Reader{}).takeGPUs(&n, []gpu.Status{{Processes: []gpu.Process{{PID: dead.Process.Pid, MPS: true}, {PID: os.Getpid()}}}})
	if got := n.GPUs[0].Processes; len(got) != 1 || got[0].PID != os.Getpid() {
		t.Errorf("%+v", got)
	}
}

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

// sharing is a node on which jobs 7 and 8 have a daemon each on one GPU, with a client each.
func sharing() Node {
	n := Node{Root: true, GPUs: []GPU{{UUID: gpuA, Processes: []Process{{PID: 70, Kind: KindClient}, {PID: 80, Kind: KindClient}}}}}
	for i, id := range []uint32{7, 8} {
		n.Jobs = append(n.Jobs, Job{
			ID: id, Phase: Opened, leased: true, ticket: &lease.Ticket{}, Part: lease.Part{Gres: lease.GresMPS},
			Devices: []Held{{UUID: gpuA, Clients: []Client{{PID: 70 + 10*i, Percent: 1}}}},
			Daemons: []Daemon{{State: Serves, Devices: []site.UUID{gpuA}}},
		})
	}
	return n
}

// A client of one job's daemon is not a stranger to the other job on the GPU.
func TestJobsThatShareAGPUAreNoStrangers(t *testing.T) {
	n := sharing()
	if found := diagnose(n); slices.ContainsFunc(found, func(f Finding) bool { return f.Kind == clientOfAnother }) {
		t.Errorf("%+v", found)
	}
	if jobs := n.sharers(gpuA); !slices.Equal(jobs, []uint32{7, 8}) {
		t.Errorf("the GPU's jobs are %v", jobs)
	}
}

// A shared daemon needs a job, and a job that shares a daemon needs its lease.
func TestASharedDaemonAndItsJobs(t *testing.T) {
	const shared = 0xf0000000
	kinds := func(jobs ...Job) (all []Kind) {
		n := Node{Root: true}
		for _, j := range jobs {
			j.Phase, j.leased, j.ticket = Opened, true, &lease.Ticket{}
			n.Jobs = append(n.Jobs, j)
		}
		for _, f := range diagnose(n) {
			all = append(all, f.Kind)
		}
		return all
	}
	for _, c := range []struct {
		jobs []Job
		want []Kind
	}{
		{[]Job{{ID: 7, Joined: shared}, {ID: shared}}, nil},
		{[]Job{{ID: shared}}, []Kind{sharedWithoutJob}},
		{[]Job{{ID: 7, Joined: shared}}, []Kind{jobWithoutShared}},
	} {
		if got := kinds(c.jobs...); !slices.Equal(got, c.want) {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}
