// SPDX-License-Identifier: Apache-2.0

package reap

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
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm/steps"
)

// executor records the calls of a Reaper. It changes nothing.
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

// modes are the compute modes of GPUs.
type modes map[site.UUID]site.Mode

func (m modes) Devices() (all []site.Device, err error) {
	for uuid := range m {
		all = append(all, site.Device{UUID: uuid})
	}
	return all, nil
}

func (m modes) Mode(uuid site.UUID) (site.Mode, error) { return m[uuid], nil }

const (
	gpu0 = site.UUID("GPU-00000000-0000-0000-0000-000000000000")
	gpu1 = site.UUID("GPU-11111111-1111-1111-1111-111111111111")
)

// The jobs of these tests: no process on this machine belongs to them.
const goneJob, openJob = 3_999_999_907, 3_999_999_908

// node is a node with an open job on gpu0.
type node struct {
	*Reaper
	t *testing.T
	e *executor
}

func newNode(t *testing.T, only uint32) node {
	t.Helper()
	r := newReaper(t, only)
	n := node{r, t, &executor{}}
	r.Executor, r.gpus = n.e, modes{gpu0: site.ModeExclusiveProcess, gpu1: site.ModeDefault}
	var err error
	if r.self, err = proc.Current(); err != nil {
		t.Fatal(err)
	}
	n.lease(openJob, lease.Opened, gpu0)
	return n
}

func (n node) do(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n node) lease(job uint32, phase lease.Phase, uuids ...site.UUID) {
	n.t.Helper()
	l := lease.Lease{Job: lease.Job{ID: job, UID: 2001, GID: 2001}, Phase: phase}
	for _, uuid := range uuids {
		l.GPUs = append(l.GPUs, lease.LeasedGPU{UUID: uuid, NewMode: site.ModeExclusiveProcess})
	}
	n.do(n.store.Create(n.t.Context(), l))
}

func (n node) ticket(job uint32, refusal string) {
	n.t.Helper()
	n.do(n.store.WriteTicket(lease.Ticket{Job: lease.Job{ID: job, UID: 2001, GID: 2001}, RefusalReason: refusal}))
}

// file writes a file of root's below the folder of state.
func (n node) file(path, content string) {
	n.t.Helper()
	path = filepath.Join(n.paths.Run(), path)
	n.do(os.MkdirAll(filepath.Dir(path), 0o755))
	n.do(os.WriteFile(path, []byte(content), 0o600))
}

// run reaps, and returns the results except that of the open job, and the calls.
func (n node) run() (results []Result, calls string) {
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
		spoil func(node)
		want  string // place and action
		text  string // a part of reason and fix
		calls string
	}{
		{"nothing", func(node) {}, "", "", ""},
		{"a lease that a prolog left", func(n node) { n.lease(goneJob, lease.Opening, gpu1) },
			"job close", "prolog has died", "undo, unlock"},
		{"a lease that an epilog left", func(n node) { n.lease(goneJob, lease.Closing) },
			"job close", "did not end well", "undo, unlock"},
		{"a folder", func(n node) { n.file(fmt.Sprintf("jobs/%d/lock", goneJob), "") },
			"job remove", "no lease names a folder", "void with 0 daemons, unlock"},
		{"a claim", func(n node) {
			n.lease(goneJob, lease.Opening, gpu1)
			n.do(os.Remove(filepath.Join(n.paths.Run(), fmt.Sprintf("leases/%d.json", goneJob))))
		}, "job remove", "the claim on GPU-1", "void with 0 daemons, unlock"},
		{"a ticket", func(n node) { n.ticket(goneJob, "") }, "job remove", "a ticket", "void with 0 daemons, unlock"},
		{"a lock file of a killed program", func(n node) { n.file(fmt.Sprintf("locks/%d", goneJob), `{"pid":1,"start":1}`) },
			"job remove", "the lock", "void with 0 daemons, unlock"},
		{"a lease of another boot", func(n node) {
			n.file(fmt.Sprintf("leases/%d.json", goneJob), fmt.Sprintf(`{"schema":%d,"boot":"earlier"}`, lease.Schema))
		}, "job remove", "another boot", "void with 0 daemons, unlock"},
		{"a refusal of a job that may run", func(n node) { n.ticket(goneJob, "no GPU") }, "", "", ""},
		{"a refusal with a folder", func(n node) {
			n.ticket(goneJob, "no GPU")
			n.file(fmt.Sprintf("jobs/%d/lock", goneJob), "")
		}, "job leave", "mpsctl reap --job", ""},
		{"an exclusive GPU", func(n node) { n.gpus = modes{gpu0: site.ModeExclusiveProcess, gpu1: site.ModeExclusiveProcess} },
			"GPU leave", "nvidia-smi -i " + string(gpu1), ""},
		{"a torn claim", func(n node) { n.file("claims/"+string(gpu1), `{"schema":1`) }, "GPU leave", stays, ""},
		{"a torn lease", func(n node) { n.file(fmt.Sprintf("leases/%d.json", goneJob), `{"schema":1`) },
			"job leave", stays, ""},
		{"a lease of another schema", func(n node) {
			boot, err := proc.BootID()
			n.do(err)
			n.file(fmt.Sprintf("leases/%d.json", goneJob), fmt.Sprintf(`{"schema":99,"boot":%q}`, boot))
		}, "job leave", stays, ""},
		{"a torn ticket and a folder", func(n node) {
			n.file(fmt.Sprintf("tickets/%d.json", goneJob), `{"schema":1`)
			n.file(fmt.Sprintf("jobs/%d/lock", goneJob), "")
		}, "job leave", stays, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, 0)
			c.spoil(n)
			results, calls := n.run()
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
			place := strings.NewReplacer(job, "", string(gpu1), "GPU").Replace(got.Where)
			if place+" "+string(got.Action) != c.want || !strings.Contains(got.Reason+got.Fix, c.text) {
				t.Errorf("%+v, want %s with %q", got, c.want, c.text)
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
	n.e.first = func() { n.do(os.Remove(filepath.Join(n.paths.Run(), fmt.Sprintf("leases/%d.json", goneJob)))) }
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
	id, lock, err := r.store.NewShared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shared := lease.Lease{Job: lease.Job{ID: id, UID: 2001}, Phase: lease.Opened}
	member := lease.Lease{Job: lease.Job{ID: 7, UID: 2001}, Phase: lease.Opened, Joined: id}
	if err := errors.Join(lock.Release(), r.store.Save(shared), r.store.Save(member)); err != nil {
		t.Fatal(err)
	}
	if result := r.withLease(resultOf(id), shared, steps.Steps{}); result.Action != Keep || result.Where != "shared daemon 1" {
		t.Errorf("with a job: %+v", result)
	}
	if err := r.store.Delete(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	if result := r.withLease(resultOf(id), shared, steps.Steps{}); result.Action != Close {
		t.Errorf("without a job: %+v", result)
	}
}
