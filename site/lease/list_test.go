// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The lists contain exactly the records, whatever other files are in the folders. Listing makes no file.
func TestList(t *testing.T) {
	j := newStore(t)
	ctx := deadline(t, 5*time.Second)
	for job, device := range map[uint32]site.UUID{7: gpuA, 100: gpuB} {
		l := leaseOf(job, device)
		must.OK(t, errors.Join(j.Create(ctx, l), j.WriteTicket(Ticket{Job: l.Job}), j.MakeDirs(l)))
	}
	for _, name := range []string{"leases/.8.json.new", "leases/x.json", "leases/08.json", "leases/9", "tickets/-1.json", "tickets/4294967296.json", "jobs/lock"} {
		must.OK(t, os.WriteFile(filepath.Join(j.dir, name), []byte("{}"), 0o600))
	}
	before := everything(t, j)
	for what, list := range map[string]func() ([]uint32, error){"jobs": j.Jobs, "tickets": j.Tickets, "dirs": j.Dirs} {
		if got, err := list(); err != nil || !slices.Equal(got, []uint32{7, 100}) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	if after := everything(t, j); after != before {
		t.Errorf("the list changed something:\nbefore %s\nafter  %s", before, after)
	}
}

func TestListBeforeTheFirstProlog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	j := OpenReadOnly(dir, "boot-1")
	jobs, err1 := j.Jobs()
	tickets, err2 := j.Tickets()
	dirs, err3 := j.Dirs()
	if err := errors.Join(err1, err2, err3); err != nil || len(jobs)+len(tickets)+len(dirs) != 0 {
		t.Errorf("%v %v %v, %v", jobs, tickets, dirs, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the survey made %s: %v", dir, err)
	}
}

// Contract: I2
func TestActing(t *testing.T) {
	j := newStore(t)
	if proc, acting := j.LockHolder(7); acting {
		t.Errorf("%v holds a lock that is free", proc)
	}
	lock := must.Get(j.Lock(deadline(t, 5*time.Second), 7))(t)
	self := must.Get(proc.Current())(t)
	if proc, acting := j.LockHolder(7); !acting || proc != self {
		t.Errorf("%v, %v, want %v", proc, acting, self)
	}
	if locked, err := j.LockedJobs(); err != nil || !slices.Equal(locked, []uint32{7}) {
		t.Errorf("locked jobs %v, %v", locked, err)
	}
	must.OK(t, lock.Release())
	// A killed prolog has left its pid, which belongs to another process now.
	must.OK(t, os.WriteFile(filepath.Join(j.dir, "locks", "7"), []byte(fmt.Sprintf(`{"pid":%d,"start":1}`, self.PID)), 0o600))
	if proc, acting := j.LockHolder(7); acting {
		t.Errorf("%v has the lock, although its start time differs", proc)
	}
}

// BenchmarkRead1000 reads a thousand leases.
func BenchmarkRead1000(b *testing.B) {
	j, err := Open(filepath.Join(b.TempDir(), "run"), "boot-1")
	if err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		l := leaseOf(uint32(i+1), site.UUID(fmt.Sprintf("GPU-%08x", i)))
		l.Daemons = []Daemon{{Devices: []site.UUID{l.GPUs[0].UUID}, PipeDir: j.JobDir(l.Job.ID) + "/0/pipe"}}
		if err := j.Save(l); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		jobs, err := j.Jobs()
		if err != nil || len(jobs) != 1000 {
			b.Fatal(len(jobs), err)
		}
		for _, job := range jobs {
			if _, err := j.Read(job); err != nil {
				b.Fatal(err)
			}
		}
	}
}
