// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// A process with the same pid and another start time is another process: it gets no signal.
//
// Contract: I2
func TestKillOfAnotherProcess(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "60")
	must.OK(t, cmd.Start())
	stat := must.Get(ReadStat(cmd.Process.Pid))(t)
	for _, start := range []uint64{stat.Start - 1, stat.Start + 1} {
		if err := (Process{PID: cmd.Process.Pid, Start: start}).Kill(unix.SIGTERM); err != nil {
			t.Errorf("a later process with its pid: %v", err)
		}
	}
	must.OK(t, stat.Kill(unix.SIGKILL))
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the process itself gets no signal")
	}
	// A signal to another process would be the first.
	if by := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); by != unix.SIGKILL {
		t.Errorf("ended by %v, want %v", by, unix.SIGKILL)
	}
	if err := stat.Kill(unix.SIGKILL); err != nil {
		t.Errorf("of a process that has ended: %v", err)
	}
}

// A child has its pid also if the kernel's account of it does not come in time, as beside many processes that are in the
// middle of an exec. So it can be lowered, counted and found.
func TestAChildThatDoesNotAnswer(t *testing.T) {
	all := maxSilent + maxSilentRecorded
	count := func(n int) {
		states.mutex.Lock()
		defer states.mutex.Unlock()
		states.running += n
	}
	count(all)
	c, err := StartPiped("/bin/cat")
	count(-all)
	must.OK(t, err)
	defer c.Out.Close()
	if comm, err := Name(c.PID); err != nil || comm != "cat" {
		t.Errorf("pid %d is %q, %v", c.PID, comm, err)
	}
	c.In.Close()
	<-c.Ended
}
