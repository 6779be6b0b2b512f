// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
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

// controlRun is the control program at work as the job's user, who may stop it, feed it or make it do anything.
type controlRun struct {
	pid                    int
	report, question, said *os.File
	ended                  chan struct{} // closed when it has ended; it is not waited for yet, so the pid is still its own
}

// killTimeout is for a killed program to be gone: one in the midst of a system call may take its time.
const killTimeout = time.Second

// outputTimeout is how long what a program has said is waited for once it has ended: a daemon that it started may hold the
// pipe open for ever.
const outputTimeout = 200 * time.Millisecond

// run runs the control program with a question on its stdin, until it ends or ctx does, and returns what it said on
// stdout and stderr, which is bounded. The error wraps site.ErrNoAnswer where ctx ended first, and is a *site.AsUserError
// where it is the program that failed.
func (c ControlProgram) run(ctx context.Context, job lease.Job, d lease.Daemon, question string, args ...string) (said string, err error) {
	e, err := c.begin(job, d, args)
	if err != nil {
		return "", fmt.Errorf("cannot run %s: %w", c.Path, err)
	}
	defer e.close()
	heard := e.exchange(question)
	inTime := e.wait(ctx)
	_ = e.said.SetReadDeadline(time.Now().Add(outputTimeout))
	said = <-heard
	if !inTime {
		return said, &site.AsUserError{Err: site.ErrNoAnswer}
	}
	_ = e.report.SetReadDeadline(time.Now().Add(outputTimeout)) // it has ended: what there is, is there
	if err := launched(e.report); err != nil {
		return "", &site.AsUserError{Err: fmt.Errorf("cannot run %s: %w", c.Path, err)}
	}
	return said, e.status()
}

// begin starts the program. The environment is built, and nothing is inherited.
func (c ControlProgram) begin(job lease.Job, d lease.Daemon, args []string) (*controlRun, error) {
	in, question, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	said, out, err := os.Pipe()
	if err != nil {
		question.Close()
		return nil, err
	}
	defer out.Close()
	pid, report, err := fork(job, d.Group, c.Path, append([]string{c.Path}, args...), c.environment(d), [3]*os.File{in, out, out})
	if err != nil {
		question.Close()
		said.Close()
		return nil, err
	}
	e := &controlRun{pid: pid, report: report, question: question, said: said, ended: make(chan struct{})}
	go e.watch()
	return e, nil
}

// watch waits for the end and leaves the process a zombie, whose pid nobody else can get.
func (e *controlRun) watch() {
	defer close(e.ended)
	for {
		if err := unix.Waitid(unix.P_PID, e.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// exchange asks the question and hears what the program says.
func (e *controlRun) exchange(question string) (heard <-chan string) {
	go func() {
		if question != "" {
			_, _ = io.WriteString(e.question, question)
		}
		e.question.Close()
	}()
	all := make(chan string, 1)
	go func() {
		words := &bounded{}
		_, _ = io.Copy(words, e.said)
		all <- words.kept.String()
	}()
	return all
}

// wait waits for the end; where ctx ends first, it ends the program with its whole session, so that a site's script
// around it does not outlive it.
func (e *controlRun) wait(ctx context.Context) (inTime bool) {
	select {
	case <-e.ended:
		return true
	case <-ctx.Done():
	}
	_ = unix.Kill(-e.pid, unix.SIGKILL)
	_ = unix.Kill(e.pid, unix.SIGKILL) // it may have left the session, or not made it yet
	select {
	case <-e.ended:
	case <-time.After(killTimeout):
	}
	return false
}

// status is how the program ended.
func (e *controlRun) status() error {
	var status unix.WaitStatus
	if _, err := unix.Wait4(e.pid, &status, 0, nil); err != nil {
		return fmt.Errorf("cannot wait for pid %d: %w", e.pid, err)
	}
	switch {
	case status.Signaled():
		return &site.AsUserError{Err: fmt.Errorf("it was ended by %s", unix.SignalName(status.Signal()))}
	case status.ExitStatus() != 0:
		return &site.AsUserError{Err: fmt.Errorf("exit status %d", status.ExitStatus())}
	}
	return nil
}

// close lets go of the program. One that did not end in time is waited for as far as it has ended.
func (e *controlRun) close() {
	for _, file := range []*os.File{e.report, e.question, e.said} {
		file.Close()
	}
	_, _ = unix.Wait4(e.pid, nil, unix.WNOHANG, nil)
}

// bounded keeps the first bytes that a program says and drops the rest: what the user's daemon says may be endless. The
// buffer is no part of it, since io.Copy would then find the buffer's own ReadFrom, which keeps all.
type bounded struct {
	kept bytes.Buffer
}

// maxAnswer is far above the longest true answer, ps with 60 clients.
const maxAnswer = 64 << 10

func (b *bounded) Write(p []byte) (int, error) {
	b.kept.Write(p[:min(len(p), maxAnswer-b.kept.Len())])
	return len(p), nil
}
