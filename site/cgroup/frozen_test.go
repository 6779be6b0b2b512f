// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// A process that is in the first list of a group and not in the second one gets no signal, because its pid may be
// another process's by now.
//
// Contract: I2, D5
func TestAProcessThatLeftTheGroup(t *testing.T) {
	start := func() *exec.Cmd {
		cmd := exec.Command("/bin/sleep", "60")
		must.OK(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	stays, left := start(), start()
	dir := t.TempDir()
	list := filepath.Join(dir, procs)
	if err := unix.Mkfifo(list, 0o600); err != nil { // so that the first read gets another list than the second
		t.Fatal(err)
	}
	second := filepath.Join(dir, "second")
	must.OK(t, os.WriteFile(second, fmt.Appendf(nil, "%d\n", stays.Process.Pid), 0o600))
	listed := make(chan error, 1)
	go func() {
		first, err := os.OpenFile(list, os.O_WRONLY, 0) // when the first read has begun
		if err == nil {
			_, err = fmt.Fprintf(first, "%d\n%d\n", stays.Process.Pid, left.Process.Pid)
			err = errors.Join(err, os.Rename(second, list), first.Close())
		}
		listed <- err
	}()
	must.OK(t, signalAll(dir))
	must.OK(t, <-listed)
	if err := stays.Wait(); err == nil || stays.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("the process of the group: %v", err)
	}
	_ = left.Process.Signal(unix.SIGTERM) // later than a SIGKILL
	if _ = left.Wait(); left.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGTERM {
		t.Errorf("the process that left the group: %v", left.ProcessState)
	}
}

// A group that cannot hold a daemon's processes together is refused and removed.
//
// Contract: D5
func TestAThreadedGroupIsNotUsed(t *testing.T) {
	kinds := map[string]bool{"domain": true, "threaded": false, "domain invalid": false, "domain threaded": false}
	for kind, want := range kinds {
		dir := filepath.Join(t.TempDir(), "group")
		must.OK(t, os.Mkdir(dir, 0o755))
		must.OK(t, os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte(kind+"\n"), 0o644))
		if err := (Tree{}).Make(dir); (err == nil) != want {
			t.Errorf("%q: %v", kind, err)
		}
	}
}
