// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// A guard that is not ready is killed, and its end is awaited for a time only: a process may hang in the kernel. Here it
// has a tracer that does not wait for it, so its parent is not told of its end.
func TestTheStartOfAGuardThatDoesNotEnd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	store, err := lease.Open(filepath.Join(t.TempDir(), "run"), "a boot")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() {
		_, err := Control{Path: "/proc/self/exe", Store: store}.Start(t.Context(), 7)
		started <- err
	}()
	select {
	case err := <-started:
		if err == nil || !strings.HasSuffix(err.Error(), "cannot start guard of job 7: it is held") {
			t.Errorf("%v", err)
		}
	case <-time.After(time.Minute):
		t.Error("no answer within a minute")
	}
}

// If the servers' pipes cannot be read, no client is taken for one outside of MPS.
func TestPipesThatCannotBeRead(t *testing.T) {
	r := newTestGuard(t, time.Minute)
	r.still()
	mayOpen(t, 0)
	if pipes, err := r.serverPipes(); err == nil {
		t.Errorf("%v, and no error", pipes)
	}
}

// heldGuard is a guard whose end is not seen until its stdin is closed.
func heldGuard() {
	tracer := exec.Command("/proc/self/exe", "--trace", strconv.Itoa(os.Getpid()))
	tracer.Stdin, tracer.Stdout = os.Stdin, os.Stdout
	if err := tracer.Run(); err != nil {
		fmt.Println(err)
	}
}

// trace traces a process until stdin is closed.
func trace(process string) error {
	pid, err := strconv.Atoi(process)
	if err != nil {
		return err
	}
	if err := unix.PtraceSeize(pid); err != nil {
		return err
	}
	fmt.Println("it is held")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
