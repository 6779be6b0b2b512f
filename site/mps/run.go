// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// controlRun is a run of the control program as the job's user, who may stop it, write to it or make it do anything.
type controlRun struct {
	pid                      int
	report, question, output *os.File
	ended                    chan struct{} // closed after the end; the program is not reaped yet, so its pid is not reused
}

// killTimeout is the time for a killed program to end. A program within a system call may need some time.
const killTimeout = time.Second

// outputTimeout is how long output is awaited after the program has ended. A daemon that it started may hold the pipe
// open without end.
const outputTimeout = 200 * time.Millisecond

// maxAnswer is far above the longest genuine answer, ps with 60 clients.
const maxAnswer = 64 << 10

// run runs the control program with a question on its stdin until it ends or ctx ends. It returns the beginning of
// stdout and stderr. The error wraps site.ErrNoAnswer if ctx ended first, and is a *site.AsUserError if the program
// failed.
func (c ControlProgram) run(ctx context.Context, job lease.Job, d lease.Daemon, question string, args ...string) (output string, err error) {
	e, err := c.begin(job, d, args)
	if err != nil {
		return "", fmt.Errorf("cannot run %s: %w", c.Path, err)
	}
	defer e.close()
	heard := e.exchange(question)
	inTime := e.wait(ctx)
	_ = e.output.SetReadDeadline(time.Now().Add(outputTimeout))
	output = <-heard
	if !inTime {
		return output, &site.AsUserError{Err: site.ErrNoAnswer}
	}
	_ = e.report.SetReadDeadline(time.Now().Add(outputTimeout)) // the program has ended, so no more can come
	if err := launched(e.report); err != nil {
		return "", &site.AsUserError{Err: fmt.Errorf("cannot run %s: %w", c.Path, err)}
	}
	return output, e.status()
}

// begin starts the program with a built environment. Nothing is inherited.
func (c ControlProgram) begin(job lease.Job, d lease.Daemon, args []string) (*controlRun, error) {
	stdin, question, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	output, stdout, err := os.Pipe()
	if err != nil {
		question.Close()
		return nil, err
	}
	defer stdout.Close()
	pid, report, err := c.fork(job, d.Group, append([]string{c.Path}, args...), c.environment(d), [3]*os.File{stdin, stdout, stdout})
	if err != nil {
		question.Close()
		output.Close()
		return nil, err
	}
	e := &controlRun{pid: pid, report: report, question: question, output: output, ended: make(chan struct{})}
	go e.watch()
	return e, nil
}

// watch waits for the end and leaves the process a zombie, so that its pid is not reused.
func (r *controlRun) watch() {
	defer close(r.ended)
	for {
		if err := unix.Waitid(unix.P_PID, r.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// exchange writes the question and reads the output.
func (r *controlRun) exchange(question string) (heard <-chan string) {
	go func() {
		if question != "" {
			_, _ = io.WriteString(r.question, question)
		}
		r.question.Close()
	}()
	all := make(chan string, 1)
	go func() {
		first, _ := io.ReadAll(io.LimitReader(r.output, maxAnswer))
		_, _ = io.Copy(io.Discard, r.output) // the output of the user's daemon may be endless
		all <- string(first)
	}()
	return all
}

// wait waits for the end. If ctx ends first, it kills the program's whole session, because a site's script around the
// program must not outlive it.
func (r *controlRun) wait(ctx context.Context) (inTime bool) {
	select {
	case <-r.ended:
		return true
	case <-ctx.Done():
	}
	_ = unix.Kill(-r.pid, unix.SIGKILL)
	_ = unix.Kill(r.pid, unix.SIGKILL) // the program may have left the session, or not made it yet
	select {
	case <-r.ended:
	case <-time.After(killTimeout):
	}
	return false
}

// status returns an error that describes how the program ended.
func (r *controlRun) status() error {
	var status unix.WaitStatus
	if _, err := unix.Wait4(r.pid, &status, 0, nil); err != nil {
		return fmt.Errorf("cannot wait for pid %d: %w", r.pid, err)
	}
	switch {
	case status.Signaled():
		return &site.AsUserError{Err: fmt.Errorf("it was ended by %s", unix.SignalName(status.Signal()))}
	case status.ExitStatus() != 0:
		return &site.AsUserError{Err: fmt.Errorf("exit status %d", status.ExitStatus())}
	}
	return nil
}

// close releases the program. A program that did not end in time is reaped if it has ended now.
func (r *controlRun) close() {
	for _, file := range []*os.File{r.report, r.question, r.output} {
		file.Close()
	}
	_, _ = unix.Wait4(r.pid, nil, unix.WNOHANG, nil)
}
