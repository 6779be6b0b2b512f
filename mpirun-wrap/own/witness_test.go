// SPDX-License-Identifier: Apache-2.0

package own

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"golang.org/x/sys/unix"
)

// A process with the daemon's variable is a witness while it lives, also without an open file and in a session of its
// own. Processes with another value, and without any variable, are none. One that begins is looked at again.
func TestLeftBehind(t *testing.T) {
	k := &keeper{}
	k.job.UID, k.folders.PipeDir = uint32(os.Getuid()), base(t)+"/pipe"
	var as *syscall.SysProcAttr
	if os.Getuid() == 0 { // other tests' processes of root may be anything
		k.job.UID = 1<<20 + uint32(os.Getpid())
		as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: k.job.UID, Gid: k.job.UID}}
	}
	start := func(env ...string) *exec.Cmd {
		cmd := exec.Command("sleep", "60")
		cmd.Env, cmd.SysProcAttr = env, as // nil is that of the test
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
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
	orphan := exec.Command("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
	orphan.Env, orphan.SysProcAttr = []string{"A=b", "PATH=/usr/bin:/bin", pipeVariable + "=" + k.folders.PipeDir}, as
	printed, err := orphan.Output()
	titled, err2 := strconv.Atoi(strings.TrimSpace(string(printed)))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(titled, unix.SIGKILL) })
	for name := ""; name != "sleep"; name, _ = proc.Name(titled) {
	}
	testproc.Overwrite(t, titled)
	if !k.leftBehind() {
		t.Error("a process that has overwritten its environment ended the keeper")
	}
	login := start("A=b", pipeVariable+"="+k.folders.PipeDir) // has its own parent, as a login has
	testproc.Overwrite(t, login.Process.Pid)
	if k.mayBeLeft(login.Process.Pid) {
		t.Error("a process with its own parent counts as left")
	}
	if stat, err = proc.ReadStat(titled); err != nil {
		t.Fatal(err)
	}
	k.process.Store(&proc.Process{PID: titled, Start: stat.Start + 1})
	if k.leftBehind() {
		t.Error("a process that is older than the daemon is a witness")
	}
}

// A keeper waits for a rank that has closed its life, and ends after it.
func TestWaitForARankWithoutItsLife(t *testing.T) {
	k := newKeeper(t)
	read, write, err := os.Pipe()
	rank := exec.Command("sleep", "60")
	if err := errors.Join(err, write.Close(), rank.Start()); err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	k.life = read
	stat, err := proc.ReadStat(rank.Process.Pid)
	if err := errors.Join(err, k.register(stat.PID, hello{})); err != nil {
		t.Fatal(err)
	}
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
