// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// daemon is a process that the lab started and reaps. It runs in the foreground, as systemd runs it, in a session of
// its own, as a daemon has it.
type daemon struct {
	name string
	dir  string // the cluster's
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended and is reaped
}

// newCommand prepares a daemon's process: with a built environment, and output that goes to a file.
func newCommand(o Options, t tree, name string, argv ...string) (*exec.Cmd, error) {
	out, err := os.OpenFile(outPath(o.Dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = o.Dir + "/log"
	cmd.Env = append(t.env(), "SLURM_CONF="+confPath(o.Dir), "LANG=C")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	return cmd, nil
}

// launch starts a daemon from the keeper's thread.
func launch(k *keeper, o Options, t tree, name string, argv ...string) (*daemon, error) {
	cmd, err := newCommand(o, t, name, argv...)
	if err != nil {
		return nil, err
	}
	err = k.do(cmd.Start)
	cmd.Stdout.(io.Closer).Close()
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	d := &daemon{name: name, dir: o.Dir, cmd: cmd, gone: make(chan struct{})}
	go func() {
		cmd.Wait() // how it ended is in cmd.ProcessState
		close(d.gone)
	}()
	return d, nil
}

func (d *daemon) running() bool {
	if d == nil {
		return false
	}
	select {
	case <-d.gone:
		return false
	default:
		return true
	}
}

// ending says how a daemon that does not run has come to that.
func (d *daemon) ending() string {
	if d == nil {
		return "it was not started"
	}
	return fmt.Sprintf("it ended with %s", d.cmd.ProcessState)
}

// ready polls until the daemon is, and errs as soon as the daemon has ended.
func (d *daemon) ready(ctx context.Context, is func() bool) error {
	err := until(ctx, 5*time.Millisecond, func() (bool, error) {
		if !d.running() {
			return false, errors.New(d.ending())
		}
		return is(), nil
	})
	if err != nil {
		return fmt.Errorf("cannot start %s: %w%s", d.name, err, logTail(d.dir, d.name))
	}
	return nil
}

// end sends a signal and waits until the daemon is gone, or the limit is over. It reports whether it is gone. The
// signal goes to the process itself: os.Process holds a pidfd, and nobody else reaps it.
func (d *daemon) end(sig os.Signal, limit time.Duration) bool {
	if !d.running() {
		return true
	}
	d.cmd.Process.Signal(sig) // fails only where it has just ended
	select {
	case <-d.gone:
		return true
	case <-time.After(limit):
		return false
	}
}

// keeper starts processes from one thread that lives until close. A parent-death signal is sent when the thread that
// started the process ends, and Go ends threads when it likes.
type keeper struct{ work chan func() }

func newKeeper() *keeper {
	k := &keeper{work: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for f := range k.work {
			f()
		}
	}()
	return k
}

func (k *keeper) do(f func() error) error {
	done := make(chan error, 1)
	k.work <- func() { done <- f() }
	return <-done
}

func (k *keeper) close() { close(k.work) }

// tailLines is how many lines of each log an error shows.
const tailLines = 12

// logTail is the end of a daemon's log and of its output, each line on a new indented line; "" where both are empty.
func logTail(dir, name string) string {
	var b strings.Builder
	for _, path := range []string{logPath(dir, name), outPath(dir, name)} {
		text, err := os.ReadFile(path)
		if err != nil || len(text) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n  %s:", path)
		for _, line := range telling(strings.Split(strings.TrimSpace(string(text)), "\n")) {
			b.WriteString("\n    " + line)
		}
	}
	return b.String()
}

// telling picks the last lines that speak of errors, or where there are none, the last lines.
func telling(lines []string) []string {
	var errs []string
	for _, line := range lines {
		if strings.Contains(line, "fatal:") || strings.Contains(line, "error:") || strings.Contains(line, "Error:") {
			errs = append(errs, line)
		}
	}
	if len(errs) > 0 {
		lines = errs
	}
	return lines[max(0, len(lines)-tailLines):]
}
