// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// holdsLock is the variable with the folder of a store. The test's own program then holds the lock of job 7 until its
// stdin ends. closes says whether it closes the job.
const holdsLock, closes = "EPILOG_TEST_HOLDS_LOCK", "EPILOG_TEST_CLOSES"

// An epilog ends a prolog that still runs, and never another epilog.
//
// Contract: R7
func TestWhatAnEpilogEnds(t *testing.T) {
	if folder := os.Getenv(holdsLock); folder != "" {
		holdLock(t, folder)
		return
	}
	for _, closing := range []bool{true, false} {
		n := newNode(t)
		n.leased(nil)
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestWhatAnEpilogEnds$")
		cmd.Env = append(os.Environ(), holdsLock+"="+n.Dir, fmt.Sprintf("%s=%v", closes, closing))
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		must.OK(t, errors.Join(err1, err2, cmd.Start()))
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "holds\n" {
			t.Fatalf("%q, %v", line, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond) // it waits a third of its time, then decides
		lock, err := n.epilog().lockJob(ctx, 7)
		cancel()
		var busy *lease.BusyError
		if closing && (!errors.As(err, &busy) || busy.Holder.PID != cmd.Process.Pid) {
			t.Errorf("beside another epilog: %v", err)
		}
		if !closing && err != nil {
			t.Errorf("beside a prolog: %v", err)
		}
		if lock != nil {
			must.Note(t, lock.Release())
		}
		in.Close()
		if err := cmd.Wait(); (err == nil) != closing {
			t.Errorf("closing %v: the process ended with %v", closing, err)
		}
	}
}

func holdLock(t *testing.T, folder string) {
	store, err := lease.Open(folder, "boot")
	must.OK(t, err)
	lock, err := store.Lock(t.Context(), 7)
	must.OK(t, err)
	if os.Getenv(closes) == "true" {
		lock.MarkClosing()
	}
	fmt.Println("holds")
	_, _ = io.Copy(io.Discard, os.Stdin)
	must.OK(t, lock.Release())
}
