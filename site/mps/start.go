// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
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
