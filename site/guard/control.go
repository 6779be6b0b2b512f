// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// Control starts and ends guards.
type Control struct {
	Path  string // path of the guard's program
	Root  string // --root
	Store *lease.Store
	// NVML and Interval are for gpu-usage: the path of NVML's library, "" if the loader finds it, and the time between two
	// samples for the job's report, 0 for no report.
	NVML     string
	Interval time.Duration
}

// Ready is the line that a guard prints when it watches the device files.
const Ready = "ready"

const (
	startWait = 5 * time.Second
	// End waits for these times, even if its caller has less time left. They fit into the time that Slurm gives an
	// epilog beyond its deadline.
	termWait = 2 * time.Second
	killWait = time.Second
	signing  = time.Second // at most from taking the lock to writing the pid into it
)

// Running returns the guard of a job, with pid 0 if none runs.
func (c Control) Running(job uint32) (proc.Process, error) {
	if known, err := c.Store.HasGuard(job); !known {
		return proc.Process{}, err
	}
	lock, guard, err := c.take(context.Background(), job, 0)
	if lock != nil {
		err = lock.Release()
	}
	return guard, err
}

// take takes the lock of a job's guard within a time. If another guard has it, the lock is nil and take returns that
// guard, with pid 0 until the guard has written its pid.
func (c Control) take(ctx context.Context, job uint32, wait time.Duration) (*lease.JobLock, proc.Process, error) {
	bound, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	lock, err := c.Store.LockGuard(bound, job)
	if busy, ok := errors.AsType[*lease.BusyError](err); ok {
		return nil, busy.Holder, nil
	}
	return lock, proc.Process{}, err
}

// Start starts the guard of a job, in a new session outside of the job, and returns when the guard watches. If a
// guard runs already, Start returns that guard.
func (c Control) Start(ctx context.Context, job uint32) (proc.Process, error) {
	guard, err := c.Running(job)
	if err != nil || guard.PID > 0 {
		return guard, err
	}
	guard, err = c.start(ctx, job)
	if err != nil {
		return guard, fmt.Errorf("cannot start guard of job %d: %w", job, err)
	}
	return guard, nil
}

func (c Control) start(ctx context.Context, job uint32) (proc.Process, error) {
	argv := []string{c.Path, "--job", strconv.FormatUint(uint64(job), 10), "--nvml", c.NVML, "--interval", c.Interval.String()}
	if c.Root != "" {
		argv = append(argv, "--root", c.Root)
	}
	keepFiles()
	runtime.LockOSThread()
	// The guard inherits this: Go's watch over its threads, which sleeps 20 µs at a time, may sleep 1 ms longer.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(time.Millisecond), 0, 0, 0)
	guard, err := proc.StartPiped(argv...)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // as before
	runtime.UnlockOSThread()
	if err != nil {
		return proc.Process{}, err
	}
	defer guard.In.Close()
	defer guard.Out.Close()
	if err := heard(ctx, guard.Out); err != nil {
		guard.End()
		select {
		case <-guard.Ended:
		case <-time.After(killWait): // it hangs in the kernel
		}
		return proc.Process{}, err
	}
	return guard.Process, nil
}

// keepFiles makes this process's files close-on-exec, so that no program inherits them.
func keepFiles() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	_, _ = proc.EachDescriptor(os.Getpid(), func(_, fd int) bool { // a kernel before 5.11
		if fd > 2 {
			unix.CloseOnExec(fd)
		}
		return true
	})
}

// heard waits until the guard prints that it is ready.
func heard(ctx context.Context, answer *os.File) error {
	deadline := time.Now().Add(startWait)
	if limit, ok := ctx.Deadline(); ok {
		deadline = earliest(deadline, limit)
	}
	if err := answer.SetReadDeadline(deadline); err != nil {
		return err
	}
	line := make([]byte, 512)
	n, err := io.ReadAtLeast(answer, line, len(Ready)+1)
	text := strings.TrimSpace(string(line[:n]))
	switch {
	case text == Ready:
		return nil
	case text != "":
		return errors.New(text)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it is not ready within %v", startWait)
	}
	return errors.New("it ended at its start")
}

// End ends the guard of a job and returns when all of the guard's files are closed. A missing guard is not an error. A
// guard that starts later finds its lease closing and ends.
func (c Control) End(ctx context.Context, job uint32) error {
	if known, err := c.Store.HasGuard(job); !known { // on a full file system, no lock file could be made
		return err
	}
	ctx = context.WithoutCancel(ctx)
	lock, guard, err := c.take(ctx, job, 0)
	if err == nil && lock == nil && guard.PID == 0 {
		lock, guard, err = c.take(ctx, job, signing)
	}
	for _, try := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, termWait}, {unix.SIGKILL, killWait}} {
		if lock != nil || err != nil && !errors.Is(err, proc.ErrSilent) { // on a node with no time, it answers late
			break
		}
		if err = guard.Kill(try.signal); err == nil {
			lock, guard, err = c.take(ctx, job, try.wait)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("cannot end guard of job %d: %w", job, err)
	case lock == nil:
		return fmt.Errorf("cannot end guard of job %d: %s holds the driver's files and does not go", job, guard)
	}
	return lock.Release()
}
