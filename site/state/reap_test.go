// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm/steps"
)

// newReaper is a reaper of a node that has run nothing yet.
func newReaper(t *testing.T, only uint32) *reaper {
	t.Helper()
	must.Root(t)
	paths := site.Paths{Root: t.TempDir()}
	boot := must.Get(proc.BootID())(t)
	store := must.Get(lease.Open(paths.Run(), boot))(t)
	r := must.Get(NewReaper(paths, only))(t)
	r.self = proc.Process{}
	r.reader.Store, r.reader.Driver = store, func() (Driver, error) { return bare{}, nil }
	return r
}

// A process of MPS belongs to a job if it has the job's pipe folder in its environment, and the folder belongs to its
// user. Each user can write any folder into the environment.
//
// Contract: R8
func TestWhoseProcessItIs(t *testing.T) {
	r := newReaper(t, 0)
	pipe := filepath.Join(r.reader.Store.DaemonDir(7, 0), "pipe")
	must.OK(t, errors.Join(os.MkdirAll(pipe, 0o755), os.Chown(pipe, 2001, 2001)))
	for _, c := range []struct {
		name string
		uid  uint32
		pipe string
		job  uint32
		ok   bool
	}{
		{"of the job's user", 2001, pipe, 7, true},
		{"of another user", 61050, pipe, 0, false},
		{"of root", 0, pipe, 0, false},
		{"the folder is gone", 61050, filepath.Join(r.reader.Store.DaemonDir(8, 0), "pipe"), 8, true},
		{"another folder of the job", 2001, r.reader.Store.DaemonDir(7, 0), 0, false},
		{"another way to the folder", 2001, pipe + "/../pipe", 0, false},
		{"below the folder", 2001, pipe + "/x", 0, false},
		{"no number", 2001, filepath.Join(r.reader.Paths.Run(), "jobs/x/0/pipe"), 0, false},
	} {
		job, ok := r.jobOf(mps.Process{UID: c.uid, PipeDir: c.pipe})
		must.Hold(t, ok == c.ok && (!ok || job == c.job), "%s: job %d, %v", c.name, job, ok)
	}
}

// An open lease is closed only if an admin has named its job and Slurm has no step of it here.
//
// Contract: R8
func TestWhichLeasesAreClosed(t *testing.T) {
	newReaper(t, 0)
	const job = 3_999_999_901
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), fmt.Sprintf("n1_%d.0", job))) // as slurmstepd does
	must.OK(t, err)
	defer listener.Close()
	withStep, err := steps.Find()
	must.Have(t, err == nil && withStep.Sign(job, "") != "", "the step is not found: %v", err)
	for _, c := range []struct {
		name  string
		phase lease.Phase
		step  bool
		named bool
		want  Action
	}{
		{"open", lease.Opened, false, false, Leave},
		{"open, with a step", lease.Opened, true, false, keep},
		{"open and named", lease.Opened, false, true, Close},
		{"open and named, with a step", lease.Opened, true, true, Leave},
		{"opening", lease.Opening, false, false, Close},
		{"opening, with a step", lease.Opening, true, false, Leave},
		{"closing", lease.Closing, false, false, Close},
		{"closing, with a step", lease.Closing, true, false, Leave},
		{"of an unknown phase", "resting", false, true, Leave},
	} {
		r := newReaper(t, 0)
		if c.named {
			r.only = job
		}
		running := steps.Steps{}
		if c.step {
			running = withStep
		}
		l := lease.Lease{Job: lease.Job{ID: job, UID: 2001}, Phase: c.phase}
		if line := r.withLease(Result{}, l, running); line.Action != c.want {
			t.Errorf("%s: %+v, want %s", c.name, line, c.want)
		}
	}
}

// A prolog or an epilog that works on a job is not disturbed.
//
// Contract: R8
func TestAJobThatAnotherProgramWorksOn(t *testing.T) {
	r := newReaper(t, 7)
	lock := must.Get(r.reader.Store.Lock(t.Context(), 7))(t)
	defer lock.Release()
	if line, left := r.judge(7, steps.Steps{}); line.Action != Leave || left.lease != nil {
		t.Errorf("%+v", line)
	}
	r.only = 0
	if line, _ := r.judge(7, steps.Steps{}); line.Action != keep {
		t.Errorf("%+v", line)
	}
}

// A process of a guard that no signal ends is reported, with its user. One that has ended is not.
func TestTakersThatAreLeft(t *testing.T) {
	r := newReaper(t, 0)
	lines := func() string {
		r.results = nil
		r.reapNode(t.Context())
		return fmt.Sprint(r.results)
	}
	must.Equal(t, "of none", lines(), "[]")
	place := must.Get(r.reader.Store.TakerPlace(lease.Taker{Job: 7, UID: 2001, Guard: proc.Process{PID: 1 << 22}}))(t)
	taker := exec.Command("/bin/sleep", "100")
	taker.Stdout = place.Descriptor()
	must.OK(t, taker.Start())
	stat := must.Get(proc.ReadStat(taker.Process.Pid))(t)
	place.Started(stat.Process)
	must.OK(t, place.Leave())
	got := lines()
	_ = taker.Process.Kill()
	_ = taker.Wait()
	want := "{0 uid 2001 leave 1 process of root's"
	must.Hold(t, len(r.results) == 1 && strings.Contains(got, want), "%s, want %s", got, want)
	must.Equal(t, "after its end", lines(), "[]")
}
