// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// inUse is what status and reap print of a closed job whose files are in use.
const inUse = "keep files of job %d in use"

// Processes of the user outside of the jobs keep files of four closed jobs in use. Each of the four has a bound, no
// epilog fails, status and reap name them, and the user's next job is refused. Another user's is not. When the processes
// have ended, nothing is left, and the user gets MPS again.
func TestHostileFilesOfClosedJobs(t *testing.T) {
	a := newAttack(t, "", 2)
	for n, how := range []string{"open", "written", "flight", "folders"} {
		job := a.Job(uint32(20+n), "0")
		f := a.opens(job)
		a.goesOn(a.as(e2e.UID, a.program, "keeps", how, f.pipe))
		a.withstands(job, "epilog")
	}
	_, status := a.MpsctlAs(0, "status")
	_, reap := a.MpsctlAs(0, "reap")
	for job := 20; job < 24; job++ {
		for name, out := range map[string]string{"status": status, "reap": reap} {
			must.Hold(t, strings.Contains(out, fmt.Sprintf("uid %d", e2e.UID)) && strings.Contains(out, fmt.Sprintf(inUse, job)),
				"%s does not name job %d: %s", name, job, out)
		}
	}
	next := a.Job(24, "0")
	a.withstands(next, "prolog")
	if why := a.Ticket(24).RefusalReason; !strings.Contains(why, "end these processes") {
		t.Errorf("the fifth job: %q", why)
	}
	a.withstands(next, "epilog")
	other := a.Job(25, "1")
	other.UID, other.GID = e2e.OtherUID, e2e.OtherUID
	a.opens(other)
	a.withstands(other, "epilog")
	a.closes(next) // ends the processes
	a.opens(next)
	a.closes(next)
}

// The user keeps the locks of a file and of a folder, for which root's process waits and which no signal ends. The
// epilog does not wait for it, and the node goes on. It is named, and freed when the user's file system has ended.
func TestHostileLocksInAJobsFolder(t *testing.T) {
	a := newAttack(t, "", 1)
	job := a.Job(20, "0")
	f := a.opens(job)
	dir, stop := a.fileSystem(0)
	a.goesOn(a.as(e2e.UID, a.program, "locks", f.exchange, dir)) // the daemon itself needs the others
	t.Cleanup(stop)                                              // before the end of the process, which cannot end without it
	began := time.Now()
	a.withstands(job, "epilog")
	took := time.Since(began)
	_, status := a.MpsctlAs(0, "status")
	must.Hold(t, strings.Contains(status, fmt.Sprintf(inUse, 20)), "after %v: %s", took, status)
	next := a.Job(21, "0")
	a.opens(next)
	a.withstands(next, "epilog")
	stop()
	a.closes(job)
}
