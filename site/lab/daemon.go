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

// daemon is a process that the lab started and reaps. It runs in the foreground, as under systemd, and has its own
// session, as a daemon has.
type daemon struct {
	name string
	dir  string // the cluster's
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended and is reaped
}

// newCommand prepares a daemon's process with a constructed environment. Its output goes to a file.
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
		cmd.Wait() // cmd.ProcessState has the exit status
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

// ending returns why a daemon does not run.
func (d *daemon) ending() string {
	if d == nil {
		return "it was not started"
	}
	return fmt.Sprintf("it ended with %s", d.cmd.ProcessState)
}

// ready polls until is returns true. It returns an error as soon as the daemon has ended.
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

// end sends a signal and waits until the daemon has ended, or until the limit. It reports whether the daemon has
// ended. The signal cannot reach another process, because os.Process holds a pidfd and only this process reaps the
// daemon.
func (d *daemon) end(sig os.Signal, limit time.Duration) bool {
	if !d.running() {
		return true
	}
	d.cmd.Process.Signal(sig) // fails only if the daemon has just ended
	select {
	case <-d.gone:
		return true
	case <-time.After(limit):
		return false
	}
}

// keeper starts processes from one thread that lives until close. The kernel sends a parent-death signal when the
// thread that started the process ends, and Go may end any other thread at any time.
type keeper struct{ work chan func() }

func newKeeper() *keeper {
	k := &keeper{work: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
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

// tailLines is the maximum number of log lines that an error shows for each log.
const tailLines = 12

// logTail returns the last lines of a daemon's log and of its output, each on a new indented line. It returns "" if
// both are empty.
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

// telling returns the last lines that contain an error. If there are none, it returns the last lines.
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
