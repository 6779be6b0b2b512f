// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// Processes of the job's user are in the middle of an exec, and every reader of their open files waits. The guard finds
// new clients all the same, within the time that it needs beside other processes. It tells how many processes do not
// answer, and it ends when it is asked.
//
// Contract: G2, G3
func TestHostileExecsBesideAGuard(t *testing.T) {
	for name, c := range map[string]struct {
		user  uint32
		count int
	}{"one": {stormy + 40, 1}, "some": {stormy + 41, 50}} {
		t.Run(name, func(t *testing.T) {
			w := newWatchOf(t, c.user, c.user)
			neighbour := w.neighbour()
			w.holds(2, slack)
			w.a.inExec(c.user, c.count, "rank")
			w.until("the guard's note", func() bool { return w.state().Silent >= c.count })
			began := time.Now()
			victim := w.start("spin", "-ms", "5", "-queue", "150", "-for", "60")
			w.holds(4, 2*time.Second)
			t.Logf("a new client is found after %v", time.Since(began))
			victim.kill()
			w.lives(neighbour)
			if _, status := w.mpsctlAs(0, "status"); !strings.Contains(status, "no answer of ") {
				t.Errorf("mpsctl status:\n%s", status)
			}
			computing := computed(t, w.guard.PID)
			site.Sleep(w.ctx, time.Second)
			if used := computed(t, w.guard.PID) - computing; used > 200*time.Millisecond {
				t.Errorf("the guard has computed for %v in a second", used)
			}
			w.ends()
			if left := w.a.waiting(c.user); left < c.count {
				t.Errorf("only %d processes are still in their exec, so the test proves little", left)
			}
		})
	}
}
