// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// The kernel logs each refusal to duplicate a file, and does not change its answer. So a process whose files may not be
// duplicated is asked once, however often it is looked at.
func TestARefusalIsNotAskedAgain(t *testing.T) {
	r := stillGuard(t, time.Minute)
	r.takers.Line = []string{"/proc/self/exe", "--refuse"}
	c := r.child(opens + waits)
	for range 3 {
		r.scanOne(c.Process.Pid)
	}
	if r.state.Unheld != 1 {
		t.Errorf("asked %d times", r.state.Unheld)
	}
}

// A process that is killed has closed its files some time before it is a zombie. These are the files of a dead client,
// and not of one that has closed them in order: its work may be in flight.
//
// Contract: G2
func TestAProcessThatIsExiting(t *testing.T) {
	must.Root(t)
	const tries = 100 // this process must run in the moment between the two
	for range tries {
		if sawExiting(t) {
			return
		}
	}
	t.Fatalf("none of %d processes is seen between the close of its files and its end", tries)
}

// sawExiting kills a client, and checks what the guard makes of it between the close of its files and its end. It reports
// false if it was not seen there.
func sawExiting(t *testing.T) bool {
	t.Helper()
	r := stillGuard(t, time.Minute)
	pid := r.lingers().Process.Pid
	r.scanOne(pid)
	living := r.living[pid]
	if living == nil {
		t.Fatalf("it is no client: %+v", r.Guard.state)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	for began := time.Now(); ; {
		stat, err := proc.ReadStat(pid)
		switch {
		case err != nil || stat.State == 'Z':
			return false
		case stat.Exiting && closedAll(pid):
			if r.addClosed(living, time.Now()); len(r.dead) > 0 {
				t.Errorf("a killed client has ended in order: %+v", r.dead[0])
			}
			return true
		case time.Since(began) > soon:
			t.Fatal("it does not end")
		}
	}
}

// closedAll reports whether a process has no files any more.
func closedAll(pid int) bool {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return err == nil && len(entries) == 0
}

// lingers starts a client that takes long to end after its files are closed: the kernel waits for each of these
// sockets.
func (r *testGuard) lingers() *child {
	r.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "exec 5<nvidiactl 6<nvidia-uvm 8<nvidia0; echo ready; read x")
	cmd.Dir = r.folder
	for range 30 {
		fd := must.Get(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0))(r.t)
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fd), "socket"))
	}
	c := r.starts(cmd)
	for _, socket := range cmd.ExtraFiles {
		socket.Close()
	}
	return c
}

// refuse is a taker that may duplicate nothing.
func refuse() {
	question := make([]byte, 4096)
	for {
		n, _, _, _, err := unix.Recvmsg(0, question, nil, 0) // the kernel drops the pidfd
		if err != nil || n == 0 {
			os.Exit(0)
		}
		code := binary.NativeEndian.AppendUint32(nil, uint32(unix.EPERM))
		if unix.Sendmsg(0, code, nil, nil, 0) != nil {
			os.Exit(1)
		}
	}
}
