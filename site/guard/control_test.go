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
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// A guard that is not ready is killed, and its end is awaited for a time only: a process may hang in the kernel. Here it
// has a tracer that does not wait for it, so its parent is not told of its end.
func TestTheStartOfAGuardThatDoesNotEnd(t *testing.T) {
	must.Root(t)
	store := must.Get(lease.Open(filepath.Join(t.TempDir(), "run"), "a boot"))(t)
	started := make(chan error, 1)
	go func() {
		_, err := Control{Path: "/proc/self/exe", Store: store}.Start(t.Context(), 7)
		started <- err
	}()
	select {
	case err := <-started:
		must.Hold(t, err != nil && strings.HasSuffix(err.Error(), "cannot start guard of job 7: it is held"), "%v", err)
	case <-time.After(time.Minute):
		t.Error("no answer within a minute")
	}
}

// If the servers' pipes cannot be read, no client is taken for one outside of MPS.
func TestPipesThatCannotBeRead(t *testing.T) {
	r := stillGuard(t, time.Minute)
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
