// SPDX-License-Identifier: Apache-2.0

package own

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
)

// A process with the daemon's variable is a witness while it lives, also without an open file and in a session of its
// own. Processes with another value, and without any variable, are none. One that begins is looked at again.
func TestLeftBehind(t *testing.T) {
	k := &keeper{}
	k.job.UID, k.folders.PipeDir = uint32(os.Getuid()), base(t)+"/pipe"
	start := func(env ...string) *exec.Cmd {
		cmd := exec.Command("sleep", "60")
		cmd.Env = env // nil is that of the test
		must.OK(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	start()
	start([]string{}...) // without any variable
	start(pipeVariable + "=" + k.folders.PipeDir + "/other")
	for began := time.Now(); k.leftBehind(); { // one of them may be in the middle of its exec
		if time.Since(began) > time.Minute {
			t.Fatal("another daemon's process is a witness")
		}
	}
	heir := start("A=b", pipeVariable+"="+k.folders.PipeDir)
	if !k.leftBehind() {
		t.Error("a process with the variable is no witness")
	}
	_ = heir.Process.Kill()
	stat, err := proc.ReadStat(heir.Process.Pid)
	for ; err == nil && stat.Running(); stat, err = proc.ReadStat(heir.Process.Pid) {
	}
	if k.leftBehind() { // it is a zombie
		t.Error("a dead process is a witness")
	}
	_ = heir.Wait()
	titled := start("A=b", pipeVariable+"="+k.folders.PipeDir)
	testproc.Overwrite(t, titled.Process.Pid)
	if !k.leftBehind() {
		t.Error("a process that has overwritten its environment ended the keeper")
	}
	if stat, err = proc.ReadStat(titled.Process.Pid); err != nil {
		t.Fatal(err)
	}
	k.process.Store(&proc.Process{PID: titled.Process.Pid, Start: stat.Start + 1})
	if k.leftBehind() {
		t.Error("a process that is older than the daemon is a witness")
	}
}

// A keeper waits for a rank that has closed its life, and ends after it.
func TestWaitForARankWithoutItsLife(t *testing.T) {
	k := newKeeper(t)
	read, write, err := os.Pipe()
	rank := exec.Command("sleep", "60")
	must.OK(t, errors.Join(err, write.Close(), rank.Start()))
	defer read.Close()
	k.life = read
	stat, err := proc.ReadStat(rank.Process.Pid)
	must.OK(t, errors.Join(err, k.register(stat.PID, hello{})))
	lived := make(chan bool, 1)
	go func() {
		k.waitForRanks()
		lived <- alive(stat.Process)
	}()
	time.Sleep(2 * firstLook)
	_ = rank.Process.Kill()
	_ = rank.Wait()
	select {
	case early := <-lived:
		if early {
			t.Error("the keeper has ended before the rank")
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the keeper waits for a rank that has ended")
	}
}
