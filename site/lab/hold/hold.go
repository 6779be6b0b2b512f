// SPDX-License-Identifier: Apache-2.0

// Package hold runs programs that leave no process behind: their children end with them, also those that have left
// their parents, their group and their session, and those that ignore signals.
//
// Between a program and its caller stands a holder: the caller's own executable, which Begin recognises. The kernel
// makes it the parent of each orphan among its descendants, so it finds all of them and no stranger. It ends them when
// the program has ended, when the caller cancels the program, and when the caller has been killed.
package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

const (
	// holder is the first argument of a process that is one.
	holder = "slurm-mps-holder"
	// Grace is the time in which a program that is told to end may clean up.
	Grace = 20 * time.Second
	// killTime is the time in which killed processes must have ended. One that waits for a disk or a GPU may need it.
	killTime = 30 * time.Second
)

// begun is true if this executable can be a holder.
var begun bool

// Begin makes this process a holder if Command has started it as one, and does not return then. Each main that uses
// Command calls it first.
func Begin() {
	begun = true
	if os.Args[0] == holder && len(os.Args) > 1 {
		code, err := hold(os.Args[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, "hold:", err)
			code = max(code, 1)
		}
		os.Exit(code)
	}
}

// Command is exec.CommandContext for a program that leaves no process behind. If ctx ends, the program gets SIGTERM,
// and what is left after Grace is killed. The exit code is the program's: 128 and the signal if a signal ended it.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if !begun { // the holder would be a second run of this program
		panic("hold.Command without hold.Begin")
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append([]string{holder, name}, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = Grace + killTime + 10*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	return cmd
}

// hold runs a program and ends what it leaves.
func hold(line []string) (code int, err error) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 127, fmt.Errorf("cannot adopt orphans: %w", err)
	}
	path, err := exec.LookPath(line[0])
	if err != nil {
		return 127, fmt.Errorf("cannot run %s: %w", line[0], err)
	}
	program, err := os.StartProcess(path, line, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 127, fmt.Errorf("cannot run %s: %w", line[0], err)
	}
	ended, nothing := make(chan int, 1), make(chan struct{})
	go reap(program.Pid, ended, nothing)
	select {
	case code = <-ended:
	case s := <-told:
		_ = program.Signal(unix.SIGTERM) // by its pidfd, so no other process gets it
		code = 128 + int(s.(syscall.Signal))
		select {
		case <-ended:
		case <-time.After(Grace):
		}
	}
	return code, endAll(nothing)
}

// reap waits for each child, adopted ones too. A process that lives has a chain of parents up to this one, so nothing
// is left if this process has no child.
func reap(program int, ended chan<- int, nothing chan<- struct{}) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			close(nothing)
			return
		case pid == program && status.Signaled():
			ended <- 128 + int(status.Signal())
		case pid == program:
			ended <- status.ExitStatus()
		}
	}
}

// endAll kills the descendants of this process until it has none.
func endAll(nothing <-chan struct{}) error {
	late := time.After(killTime)
	for {
		left := descendants()
		var failed error
		for _, p := range left {
			failed = errors.Join(failed, p.Kill(unix.SIGKILL))
		}
		select {
		case <-nothing:
			return nil
		case <-late:
			return errors.Join(fmt.Errorf("cannot end %v: they live after SIGKILL", left), failed)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// descendants returns the processes below this one that live. Another process that gets the pid of one that ended has
// another start time, and another parent.
func descendants() (all []proc.Process) {
	self, err := proc.Current()
	if err != nil {
		return nil
	}
	parents := []proc.Process{self}
	for len(parents) > 0 {
		parent := parents[0]
		parents = parents[1:]
		for _, pid := range proc.Children(parent.PID) {
			stat, err := proc.ReadStat(pid)
			if err != nil || stat.Parent != parent.PID || parent != self && !parent.Running() {
				continue
			}
			parents = append(parents, stat.Process)
			if stat.Running() {
				all = append(all, stat.Process)
			}
		}
	}
	return all
}
