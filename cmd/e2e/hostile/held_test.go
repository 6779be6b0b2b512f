// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"golang.org/x/sys/unix"
)

// inUse returns the MiB that are in use of the job's file system, also after the job.
func (a attack) inUse(job uint32) func() uint64 {
	a.T.Helper()
	top, err := unix.Open(fmt.Sprintf("%s/jobs/%d", a.Paths().Run(), job), unix.O_PATH|unix.O_DIRECTORY, 0)
	e2e.OK(a.T, err)
	a.T.Cleanup(func() { unix.Close(top) })
	return func() uint64 {
		var st unix.Statfs_t
		e2e.OK(a.T, unix.Fstatfs(top, &st))
		return (st.Blocks - st.Bfree) * uint64(st.Bsize) >> 20
	}
}

// A process of the user outside of the job keeps files of the job's file system in use. No memory of it stays in use
// after the epilog, job after job, and nothing is left.
func TestHostileMemoryOfClosedJobs(t *testing.T) {
	a := newAttack(t, "", 1)
	for n, how := range []string{"open", "removed", "written"} {
		job := a.Job(uint32(20+n), "0")
		f := a.opens(job)
		used := a.inUse(job.ID)
		a.goesOn(a.as(e2e.UID, a.program, "keeps", how, f.pipe))
		before := used()
		a.closes(job)
		if after := used(); before < 20 || after > 0 {
			t.Errorf("%s: %d MiB, then %d", how, before, after)
		}
	}
}

// What cannot be found is named, with its user, and reap frees it when its holder has ended.
func TestHostileMemoryThatNoOneFinds(t *testing.T) {
	a := newAttack(t, "", 1)
	job := a.Job(20, "0")
	f := a.opens(job)
	used := a.inUse(job.ID)
	cmd := a.goesOn(a.as(e2e.UID, a.program, "keeps", "flight", f.pipe))
	a.withstands(job, "epilog")
	_, status := a.MpsctlAs(0, "status")
	_, reap := a.MpsctlAs(0, "reap")
	for name, out := range map[string]string{"status": status, "reap": reap} {
		user := fmt.Sprintf("uid %d", e2e.UID)
		if !strings.Contains(out, user) || !strings.Contains(out, "KiB of the file system of job 20") {
			t.Errorf("%s: %s", name, out)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !e2e.Comes(func() bool {
		_, reap = a.MpsctlAs(0, "reap")
		return !strings.Contains(reap, "file system") && used() == 0
	}) {
		t.Errorf("%d MiB; %s", used(), reap)
	}
	a.closes(job)
}

// The user keeps the locks of a file and of a folder, for which root's process waits and which no signal ends. The
// epilog does not wait for it, and the node goes on. It is named, and freed when the user's file system has ended.
func TestHostileLocksInAJobsFolder(t *testing.T) {
	a := newAttack(t, "", 1)
	job := a.Job(20, "0")
	f := a.opens(job)
	used := a.inUse(job.ID)
	dir, stop := a.fileSystem(0)
	a.goesOn(a.as(e2e.UID, a.program, "locks", f.exchange, dir)) // the daemon itself needs the others
	t.Cleanup(stop)                                              // before the end of the process, which cannot end without it
	began := time.Now()
	a.withstands(job, "epilog")
	took := time.Since(began)
	_, status := a.MpsctlAs(0, "status")
	if !strings.Contains(status, "KiB of the file system of job 20") {
		t.Errorf("after %v: %s", took, status)
	}
	next := a.Job(21, "0")
	a.opens(next)
	a.withstands(next, "epilog")
	stop()
	if !e2e.Comes(func() bool { a.MpsctlAs(0, "reap"); return used() == 0 }) {
		t.Errorf("%d MiB stay", used())
	}
	a.MpsctlAs(0, "reap")
	a.closes(job)
}
