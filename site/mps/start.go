package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// leastFiles is the RLIMIT_NOFILE that NVIDIA asks for. With 1024, of 48 clients none finished (measured).
const leastFiles = 16384

// Start starts a daemon as the job's user and returns its process, which is found as our own child and not through a
// file that the user could write. It listens when Start returns. The log of a start that failed is in the error.
func (c Control) Start(ctx context.Context, job lease.Job, d lease.Daemon) (site.Proc, error) {
	proc, err := c.start(ctx, job, d)
	if err != nil {
		return proc, fmt.Errorf("cannot start %s -d: %w%s", c.Path, err, lastWords(d.LogDir))
	}
	return proc, nil
}

func (c Control) start(ctx context.Context, job lease.Job, d lease.Daemon) (site.Proc, error) {
	if err := CheckPath(d.PipeDir); err != nil {
		return site.Proc{}, err
	}
	if err := becomeParent(); err != nil {
		return site.Proc{}, err
	}
	cmd := c.command(ctx, job, d, "-d")
	// It dies with its prolog, whose thread unmasked holds until then: nobody is to make a daemon that no epilog waits for.
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	said := &bounded{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := released(unmasked(cmd.Run)); err != nil {
		return site.Proc{}, fmt.Errorf("%w%s", orTimeout(ctx, err), quoted(said.String()))
	}
	return child(d)
}

// command is the control program as the job's user: in a session of its own, at /, without any file of ours.
func (c Control) command(ctx context.Context, job lease.Job, d lease.Daemon, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Path, args...)
	cmd.Env = c.environment(d)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 { // a user who asks a daemon of their own is that user already, and may become nobody else
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: job.UID, Gid: job.GID, Groups: job.Groups}
	}
	// The whole session goes when the deadline does, so that a site's script around the program does not survive it.
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 200 * time.Millisecond // a daemon that holds our pipe open is not waited for
	return cmd
}

// becomeParent prepares this process for having a daemon: its grandchildren become its children when their parent goes,
// they may open enough files, and the kernel may choose them when memory runs out (slurmd itself is exempt).
func becomeParent() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot become subreaper: %w", err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("cannot read RLIMIT_NOFILE: %w", err)
	}
	limit.Max = max(limit.Max, leastFiles)
	limit.Cur = max(limit.Cur, leastFiles)
	// syscall's call, not unix's: this one makes os/exec hand the limit on to children.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("cannot set RLIMIT_NOFILE to %d: %w", limit.Cur, err)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0); err != nil {
		return fmt.Errorf("cannot set oom_score_adj: %w", err)
	}
	return nil
}

// unmasked runs a command with no signal blocked: slurmd starts prologs with SIGINT and SIGPIPE blocked (recorded), and
// a child has the mask of the thread that starts it.
func unmasked(run func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none, before unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &before); err != nil {
		return fmt.Errorf("cannot set signal mask: %w", err)
	}
	err := run()
	return errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
}

// child finds the daemon among our children.
func child(d lease.Daemon) (site.Proc, error) {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return site.Proc{}, err
	}
	for _, list := range lists {
		content, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(content)) {
			pid, _ := strconv.Atoi(field)
			if proc, kin := serves(pid, d.PipeDir); kin == member {
				return proc, nil
			}
		}
	}
	return site.Proc{}, errors.New("it returned and left no daemon")
}

// bounded keeps the first bytes that a program says and drops the rest: what the user's daemon says may be endless.
type bounded struct {
	bytes.Buffer
}

// maxAnswer is far above the longest true answer, ps with 60 clients.
const maxAnswer = 64 << 10

func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), maxAnswer-b.Len())])
	return len(p), nil
}

// released forgives a program whose child keeps our pipe open: it did what it was started for.
func released(err error) error {
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return err
}

func orTimeout(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w within the deadline", site.ErrWedged)
	}
	return err
}

func quoted(said string) string {
	if said = strings.TrimSpace(said); said == "" {
		return ""
	}
	return fmt.Sprintf(": it says %q", said[:min(len(said), 300)])
}

// lastWords is the end of the daemon's log, for the error of a start that failed. The folder is the user's, so the file
// is opened without following a link or waiting for a fifo, and only so much of it is read.
func lastWords(logDir string) string {
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
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	tail := make([]byte, 300)
	n, _ := file.ReadAt(tail, max(0, info.Size()-int64(len(tail))))
	lines := strings.Split(strings.TrimSpace(string(tail[:n])), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return fmt.Sprintf(": the last line of its log is %q", last)
	}
	return ""
}
