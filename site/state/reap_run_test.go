// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm/steps"
)

// executor records the calls of a reaper. It changes nothing.
type executor struct {
	dryRun
	calls []string
	err   error  // of Undo and Void
	first func() // runs before the lock is taken
}

func (e *executor) Lock(context.Context, uint32) (func(), error) {
	if e.first != nil {
		e.first()
	}
	return func() { e.calls = append(e.calls, "unlock") }, nil
}

func (e *executor) Undo(_ context.Context, l lease.Lease) error {
	e.calls = append(e.calls, fmt.Sprintf("undo %d", l.Job.ID))
	return e.err
}

func (e *executor) Void(_ context.Context, job uint32, daemons []lease.OrphanDaemon) error {
	e.calls = append(e.calls, fmt.Sprintf("void %d with %d daemons", job, len(daemons)))
	return e.err
}

// modes is a driver whose GPUs have these compute modes.
type modes map[site.UUID]site.Mode

func (m modes) List() (all []gpu.Status, err error) {
	for uuid, mode := range m {
		all = append(all, gpu.Status{Device: site.Device{UUID: uuid}, Mode: mode})
	}
	return all, nil
}

func (m modes) Instance(site.UUID) gpu.Status { return gpu.Status{} }

const (
	gpu0 = site.UUID("GPU-00000000-0000-0000-0000-000000000000")
	gpu1 = site.UUID("GPU-11111111-1111-1111-1111-111111111111")
)

// The jobs of these tests: no process on this machine belongs to them.
const goneJob, openJob = 3_999_999_907, 3_999_999_908

// reaped is a node with an open job on gpu0.
type reaped struct {
	*reaper
	t *testing.T
	e *executor
}

func newNode(t *testing.T, only uint32) reaped {
	t.Helper()
	r := newReaper(t, only)
	n := reaped{r, t, &executor{}}
	r.Executor = n.e
	n.drive(modes{gpu0: site.ModeExclusiveProcess, gpu1: site.ModeDefault})
	var err error
	if r.self, err = proc.Current(); err != nil {
		t.Fatal(err)
	}
	n.lease(openJob, lease.Opened, gpu0)
	return n
}

func (n reaped) drive(m modes) { n.reader.Driver = func() (Driver, error) { return m, nil } }

func (n reaped) do(err error) {
	n.t.Helper()
	must.OK(n.t, err)
}

func (n reaped) lease(job uint32, phase lease.Phase, uuids ...site.UUID) {
	n.t.Helper()
	l := lease.Lease{Job: lease.Job{ID: job, UID: 2001, GID: 2001}, Phase: phase}
	for _, uuid := range uuids {
		l.GPUs = append(l.GPUs, lease.LeasedGPU{UUID: uuid, NewMode: site.ModeExclusiveProcess})
	}
	n.do(n.reader.Store.Create(n.t.Context(), l))
}

func (n reaped) ticket(job uint32, refusal string) {
	n.t.Helper()
	n.do(n.reader.Store.WriteTicket(lease.Ticket{Job: lease.Job{ID: job, UID: 2001, GID: 2001}, RefusalReason: refusal}))
}

// file writes a file of root's below the folder of state.
func (n reaped) file(path, content string) {
	n.t.Helper()
	path = filepath.Join(n.reader.Paths.Run(), path)
	n.do(os.MkdirAll(filepath.Dir(path), 0o755))
	n.do(os.WriteFile(path, []byte(content), 0o600))
}

// run reaps, and returns the results except that of the open job, and the calls.
func (n reaped) run() (results []Result, calls string) {
	n.t.Helper()
	results, err := n.Run(n.t.Context())
	n.do(err)
	return slices.DeleteFunc(results, func(r Result) bool { return r.Job == openJob && r.Action == Leave }),
		strings.Join(n.e.calls, ", ")
}

// If no lease names a record, it is removed only if it certainly belongs to a job that is gone. Otherwise it is
// reported with a fix. No case changes the open job.
//
// Contract: R8
func TestLeftovers(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(reaped)
		want  string // place and action
		text  string // a part of reason and fix
		calls string
	}{
		{"nothing", func(reaped) {}, "", "", ""},
		{"a lease that a prolog left", func(n reaped) { n.lease(goneJob, lease.Opening, gpu1) },
			"job close", "prolog has ended", "undo, unlock"},
		{"a lease that an epilog left", func(n reaped) { n.lease(goneJob, lease.Closing) },
			"job close", "epilog has ended", "undo, unlock"},
		{"a folder", func(n reaped) { n.file(fmt.Sprintf("jobs/%d/lock", goneJob), "") },
			"job remove", "no lease names a folder", "void with 0 daemons, unlock"},
		{"a ticket", func(n reaped) { n.ticket(goneJob, "") }, "job remove", "a ticket", "void with 0 daemons, unlock"},
		{"a lock file of a killed program", func(n reaped) { n.file(fmt.Sprintf("locks/%d", goneJob), `{"pid":1,"start":1}`) },
			"job remove", "the lock", "void with 0 daemons, unlock"},
		{"a lease of another boot", func(n reaped) {
			n.file(fmt.Sprintf("leases/%d.json", goneJob), fmt.Sprintf(`{"schema":%d,"boot":"earlier"}`, lease.Schema))
		}, "job remove", "another boot", "void with 0 daemons, unlock"},
		{"a refusal of a job that may run", func(n reaped) { n.ticket(goneJob, "no GPU") }, "", "", ""},
		{"a refusal with a folder", func(n reaped) {
			n.ticket(goneJob, "no GPU")
			n.file(fmt.Sprintf("jobs/%d/lock", goneJob), "")
		}, "job leave", "mpsctl reap --job", ""},
		{"an exclusive GPU", func(n reaped) { n.drive(modes{gpu0: site.ModeExclusiveProcess, gpu1: site.ModeExclusiveProcess}) },
			"GPU leave", "nvidia-smi -i " + string(gpu1), ""},
		{"a torn lease", func(n reaped) { n.file(fmt.Sprintf("leases/%d.json", goneJob), `{"schema":1`) },
			"job leave", "stays until a person moves it away", ""},
		{"a lease of another schema", func(n reaped) {
			boot, err := proc.BootID()
			n.do(err)
			n.file(fmt.Sprintf("leases/%d.json", goneJob), fmt.Sprintf(`{"schema":99,"boot":%q}`, boot))
		}, "job leave", "stays until a person moves it away", ""},
		{"a torn ticket and a folder", func(n reaped) {
			n.file(fmt.Sprintf("tickets/%d.json", goneJob), `{"schema":1`)
			n.file(fmt.Sprintf("jobs/%d/lock", goneJob), "")
		}, "job leave", "stays until a person moves it away", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, 0)
			c.spoil(n)
			_, found := n.reader.Inspect(t.Context(), func(all []Finding) []Finding { return all })
			results, calls := n.run()
			const late = "a part was not seen: the pipe folders of " // another test's daemon may be late to answer
			results = slices.DeleteFunc(results, func(r Result) bool { return strings.HasPrefix(r.Reason, late) })
			job := fmt.Sprintf(" %d", uint32(goneJob))
			if calls = strings.ReplaceAll(calls, job, ""); calls != c.calls {
				t.Errorf("calls %q, want %q", calls, c.calls)
			}
			if c.want == "" && len(results) == 0 {
				return
			}
			if len(results) != 1 {
				t.Fatalf("%+v, want %s", results, c.want)
			}
			got := results[0]
			place := strings.NewReplacer(job, "", "GPU 0 ("+string(gpu1)+")", "GPU").Replace(got.Where)
			if place+" "+string(got.Action) != c.want || !strings.Contains(got.Reason+got.Fix, c.text) {
				t.Errorf("%+v, want %s with %q", got, c.want, c.text)
			}
			for _, f := range found { // status and reap agree
				if f.Job == goneJob && f.Undo != "" && f.Undo != got.Action {
					t.Errorf("status has %+v, and reap %+v", f, got)
				}
			}
			if (got.Action == Leave) != (got.Fix != "") || got.Failed != "" {
				t.Errorf("half a result: %+v", got)
			}
		})
	}
}

// A job is judged again under its lock: an epilog may have closed it, or another job may have its number.
//
// Contract: R8
func TestJudgedAgainUnderTheLock(t *testing.T) {
	n := newNode(t, 0)
	n.lease(goneJob, lease.Closing)
	n.e.first = func() { n.lease(goneJob, lease.Opened) }
	results, calls := n.run()
	if len(results) != 1 || results[0].Action != Leave || calls != "unlock" {
		t.Errorf("%+v, calls %s", results, calls)
	}
	n.e.calls, n.results = nil, nil
	n.lease(goneJob, lease.Closing)
	n.e.first = func() { n.do(os.Remove(filepath.Join(n.reader.Paths.Run(), fmt.Sprintf("leases/%d.json", goneJob)))) }
	if results, calls := n.run(); len(results) != 0 || calls != "unlock" {
		t.Errorf("%+v, calls %s", results, calls)
	}
}

// A job that the admin names as gone is closed, alone, and a failure is in its result.
func TestANamedJob(t *testing.T) {
	n := newNode(t, openJob)
	n.lease(goneJob, lease.Closing)
	n.e.err = errors.New("cannot restore modes:\nno driver")
	results, calls := n.run()
	want := fmt.Sprintf("undo %d, unlock", openJob)
	if len(results) != 1 || results[0].Action != Close || results[0].Failed != "cannot restore modes:; no driver" || calls != want {
		t.Errorf("%+v, calls %s, want %s", results, calls, want)
	}
}

// A shared daemon stays while a job's lease names it, and Slurm is not asked for its number. Without a job it is closed.
//
// Contract: S2
func TestASharedDaemon(t *testing.T) {
	r := newReaper(t, 0)
	id, lock, err := r.reader.Store.NewShared(t.Context())
	must.OK(t, err)
	shared := lease.Lease{Job: lease.Job{ID: id, UID: 2001}, Phase: lease.Opened}
	member := lease.Lease{Job: lease.Job{ID: 7, UID: 2001}, Phase: lease.Opened, Joined: id}
	must.OK(t, errors.Join(lock.Release(), r.reader.Store.Save(shared), r.reader.Store.Save(member)))
	if result := r.withLease(resultOf(id), shared, steps.Steps{}); result.Action != keep || result.Where != "shared daemon 1" {
		t.Errorf("with a job: %+v", result)
	}
	must.OK(t, r.reader.Store.Delete(t.Context(), member))
	if result := r.withLease(resultOf(id), shared, steps.Steps{}); result.Action != Close {
		t.Errorf("without a job: %+v", result)
	}
}
