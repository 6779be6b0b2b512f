// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// neighbourGuard is a guard with one living client, which is this process.
func neighbourGuard(t *testing.T) *Guard {
	t.Helper()
	g := newTestGuard(t, time.Minute)
	self := must.Get(proc.Current())(t)
	pidfd := must.Get(unix.PidfdOpen(self.PID, 0))(t)
	t.Cleanup(func() { unix.Close(pidfd) })
	g.living[self.PID] = &client{proc: self, pidfd: pidfd, thread: self.PID, files: []*file{{owner: self}}}
	return g.Guard
}

// lines takes the lines that wait for a process.
func lines(g *Guard) (all []string) {
	for len(g.notices) > 0 {
		n := <-g.notices
		unix.Close(n.pidfd)
		all = append(all, n.text)
	}
	return all
}

// A process that cannot be guarded is told to a neighbour, once for each cause. Without a neighbour it is told to none.
func TestWarnNeighbour(t *testing.T) {
	g := neighbourGuard(t)
	must.Hold(t, !g.warnNeighbour(os.Getpid(), unix.EACCES), "a process has been told of itself")
	for range 2 {
		if !g.warnNeighbour(7, fmt.Errorf("cannot list its open files: %w", unix.EACCES)) || !g.warnNeighbour(8, unix.EMFILE) {
			t.Error("no neighbour was told")
		}
	}
	want := []string{
		"slurm-mps: cannot guard process 7, because the kernel lets only root see its files: its end may kill its neighbours\n",
		"slurm-mps: cannot guard process 8, because the guard has too many files open (raise ulimit -n): its end may kill its neighbours\n",
	}
	if got := lines(g); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A process that may use CUDA is looked at again until it does. Without Warnings, only a process that does for certain
// is told.
func TestWarnUnguarded(t *testing.T) {
	g := neighbourGuard(t)
	parent := os.Getppid()
	g.warnUnguarded(parent, unix.EACCES, false)
	if got := lines(g); len(got) > 0 {
		t.Errorf("not known to use CUDA: %q", got)
	}
	asked := 0
	g.Warnings.Unguarded = func(p proc.Process, _ error, certain bool) bool {
		asked++
		return p.PID == parent && !certain && asked == 2
	}
	g.warnUnguarded(parent, unix.EACCES, false)
	g.warnUnguarded(parent, unix.EACCES, false) // the next scan
	must.Have(t, g.awaitResults(10*time.Second, func() bool { return len(g.asked) == 0 }), "it is asked without end")
	if got := lines(g); len(got) != 1 || asked != 2 {
		t.Errorf("asked %d times: %q", asked, got)
	}
	g.Warnings.Unguarded = nil
	g.warnUnguarded(parent, unix.EMFILE, true)
	if got := lines(g); len(got) != 1 {
		t.Errorf("certain: %q", got)
	}
}
