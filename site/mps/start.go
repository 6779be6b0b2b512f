// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// startDeadline bounds the start, which took 13 ms (measured).
const startDeadline = 10 * time.Second

// Start starts a daemon as the job's user and returns its process. It finds the process among its own children, not
// by a file that the user could write. So this process may not ask this daemon at that time: a control program that
// asks looks like the daemon. The daemon listens when Start returns. The error of a failed start contains the end of the
// daemon's log.
func (c ControlProgram) Start(ctx context.Context, job lease.Job, d lease.Daemon) (proc.Process, error) {
	started, err := c.start(ctx, job, d)
	if err != nil {
		return started, fmt.Errorf("cannot start %s -d: %w%s", c.Path, err, logTail(d.LogDir, job.UID))
	}
	return started, nil
}

func (c ControlProgram) start(ctx context.Context, job lease.Job, d lease.Daemon) (proc.Process, error) {
	if err := CheckPath(d.PipeDir); err != nil {
		return proc.Process{}, err
	}
	if err := becomeParent(); err != nil {
		return proc.Process{}, err
	}
	bound, cancel := context.WithTimeout(ctx, wait.AtMostThird(ctx, startDeadline))
	defer cancel()
	if output, err := c.run(bound, job, d, "", "-d"); err != nil {
		return proc.Process{}, fmt.Errorf("%w%s", err, quoted(output))
	}
	return child(ctx, job, d)
}

// becomeParent prepares this process to start a daemon. Orphaned grandchildren become its children. They may open
// enough files, or as many as this process may. The kernel may kill them when memory runs out (slurmd itself is
// exempt).
func becomeParent() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot become subreaper: %w", err)
	}
	if _, err := raiseFiles(); err != nil {
		return err
	}
	if err := proc.SetOOMScore(os.Getpid(), 0); err != nil && os.Geteuid() == 0 {
		return err
	}
	return nil
}

// childDeadline bounds the search for the daemon among the children.
const childDeadline = 5 * time.Second

// child finds the daemon among this process's children. On a loaded node, the search may be too slow to read its
// environment. So a child with the right name is read again, because a failed start would drain the node.
func child(ctx context.Context, job lease.Job, d lease.Daemon) (proc.Process, error) {
	bound, cancel := context.WithTimeout(ctx, wait.AtMostThird(ctx, childDeadline))
	defer cancel()
	for {
		s, children := newSearch(job.UID, d), proc.Children(os.Getpid())
		for _, c := range s.at(children) {
			if c.relation == member {
				return c.proc, nil
			}
		}
		if !slices.ContainsFunc(children, s.hasName) || !wait.Sleep(bound, 20*time.Millisecond) {
			return proc.Process{}, &site.AsUserError{Err: errors.New("it returned and left no daemon")}
		}
	}
}

// maxExcerpt bounds the part of a user's text that gets into an error, and so into logs.
const maxExcerpt = 300

func quoted(output string) string {
	if output = strings.TrimSpace(output); output == "" {
		return ""
	}
	return ": it prints " + excerpt(output)
}

// excerpt is the beginning of a daemon's output, quoted and printable.
func excerpt(lines ...string) string {
	return words.Quote(strings.Join(lines, "\n"), maxExcerpt)
}

// logTail is the last line of the daemon's log, for the error of a failed start. A file of another owner is not read: the
// user may have hard-linked it, and the error may get into the user's ticket.
func logTail(logDir string, uid uint32) string {
	file, size, err := serverlog.Open(logDir, "control.log", uid)
	if err != nil {
		return ""
	}
	defer file.Close()
	tail := make([]byte, maxExcerpt)
	n, _ := file.ReadAt(tail, max(0, size-maxExcerpt))
	lines := strings.Split(strings.TrimSpace(string(tail[:n])), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return fmt.Sprintf(": the last line of its log is %q", last)
	}
	return ""
}

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
