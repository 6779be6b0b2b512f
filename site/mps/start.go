// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// startDeadline bounds the start: 13 ms were measured.
const startDeadline = 10 * time.Second

// Start starts a daemon as the job's user and returns its process, which is found as our own child and not through a
// file that the user could write. It listens when Start returns. The log of a start that failed is in the error.
func (c ControlProgram) Start(ctx context.Context, job lease.Job, d lease.Daemon) (site.Process, error) {
	proc, err := c.start(ctx, job, d)
	if err != nil {
		return proc, fmt.Errorf("cannot start %s -d: %w%s", c.Path, err, logTail(d.LogDir, job.UID))
	}
	return proc, nil
}

func (c ControlProgram) start(ctx context.Context, job lease.Job, d lease.Daemon) (site.Process, error) {
	if err := CheckPath(d.PipeDir); err != nil {
		return site.Process{}, err
	}
	if err := becomeParent(); err != nil {
		return site.Process{}, err
	}
	bound, cancel := context.WithTimeout(ctx, atMostThird(ctx, startDeadline))
	defer cancel()
	if said, err := c.run(bound, job, d, "", "-d"); err != nil {
		return site.Process{}, fmt.Errorf("%w%s", err, quoted(said))
	}
	return child(ctx, job, d)
}

// atMostThird is at most d, and at most a third of what is left of ctx: a caller is to have the time to find out why it failed.
func atMostThird(ctx context.Context, d time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return d
	}
	return min(d, time.Until(deadline)/3)
}

// becomeParent prepares this process for having a daemon: its grandchildren become its children when their parent goes,
// they may open enough files, or as many as this process may, and the kernel may choose them when memory runs out (slurmd itself is exempt).
func becomeParent() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot become subreaper: %w", err)
	}
	if _, err := raiseFiles(); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0); err != nil {
		return fmt.Errorf("cannot set oom_score_adj: %w", err)
	}
	return nil
}

// childDeadline bounds the search for the daemon among our children.
const childDeadline = 5 * time.Second

// child finds the daemon among our children. On a loaded node its environment may not be read within a look's time, so a
// child that bears the name is looked at again: a start that failed so would drain the node.
func child(ctx context.Context, job lease.Job, d lease.Daemon) (site.Process, error) {
	bound, cancel := context.WithTimeout(ctx, atMostThird(ctx, childDeadline))
	defer cancel()
	for {
		look, children := newSearch(job.UID, d), site.Children(os.Getpid())
		for _, sight := range look.at(children) {
			if sight.kin == member {
				return sight.proc, nil
			}
		}
		if !slices.ContainsFunc(children, look.hasName) || !site.Sleep(bound, 20*time.Millisecond) {
			return site.Process{}, &site.AsUserError{Err: errors.New("it returned and left no daemon")}
		}
	}
}

// maxExcerpt bounds what of a user's words comes into an error, and so into logs.
const maxExcerpt = 300

func quoted(said string) string {
	if said = strings.TrimSpace(said); said == "" {
		return ""
	}
	return ": it says " + excerpt(said)
}

// excerpt is the beginning of what a daemon says, in quotes and printable.
func excerpt(words ...string) string {
	said := strings.Join(words, "\n")
	return strconv.Quote(said[:min(len(said), maxExcerpt)])
}

// logTail is the end of the daemon's log, for the error of a start that failed. The folder is the user's, so the file
// is opened without following a link or waiting for a fifo, only so much of it is read, and nothing of a file that is not
// the user's own: a hard link may stand for anybody's, and the error may come to be in the user's ticket.
func logTail(logDir string, uid uint32) string {
	root, err := os.OpenRoot(logDir)
	if err != nil {
		return ""
	}
	defer root.Close()
	file, err := root.OpenFile("control.log", os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != uid {
		return ""
	}
	tail := make([]byte, maxExcerpt)
	n, _ := file.ReadAt(tail, max(0, st.Size-int64(len(tail))))
	lines := strings.Split(strings.TrimSpace(string(tail[:n])), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return fmt.Sprintf(": the last line of its log is %q", last)
	}
	return ""
}
