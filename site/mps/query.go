// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// Limits of one question. An answer takes 2 to 5 ms, and terminate_client up to 311 ms (measured). A third of
// simultaneous questions fail, so a question is repeated a bounded number of times.
const (
	askDeadline = 5 * time.Second
	firstAnswer = 10 * time.Second
	askTries    = 6
	lockTimeout = 2 * time.Second
)

// errTransient is a failed question of the kind that a busy daemon causes.
var errTransient = errors.New("the daemon dropped the question")

// ask sends command lines to the daemon on one connection and returns the lines of the answer. A command without an
// answer leaves no line. The error wraps site.ErrDaemonDown or site.ErrNoAnswer.
func (c ControlProgram) ask(ctx context.Context, job lease.Job, d lease.Daemon, lines ...string) ([]string, error) {
	defer serialise(ctx, d, os.O_CREATE)()
	return c.askUntilAnswered(ctx, askTries, job, d, lines)
}

// askUntilAnswered repeats the question until there is an answer, because other questions may disturb it.
func (c ControlProgram) askUntilAnswered(ctx context.Context, tries int, job lease.Job, d lease.Daemon, lines []string) ([]string, error) {
	for try, pause := 1, 5*time.Millisecond; ; try, pause = try+1, 2*pause {
		answer, err := c.askOnce(ctx, job, d, lines)
		if err == nil {
			return answer, nil
		}
		if !errors.Is(err, errTransient) || try == tries || !wait.Sleep(ctx, pause) {
			return nil, fmt.Errorf("cannot ask daemon of %s %q: %w", d.PipeDir, lines[0], err)
		}
	}
}

// serialise makes questions to one daemon wait for each other. The lock is in root's folder above the pipe folder.
// After lockTimeout the question is asked without the lock, because it is repeated if it fails. A reader makes no
// lock file: a file that appears while an epilog removes the folder would make the removal fail.
func serialise(ctx context.Context, d lease.Daemon, create int) (unlock func()) {
	path := filepath.Join(filepath.Dir(d.PipeDir), "lock")
	file, err := os.OpenFile(path, os.O_RDONLY|create|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return func() {}
	}
	bound, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	_ = osfile.Flock(bound, file)
	return func() { file.Close() }
}

func (c ControlProgram) askOnce(ctx context.Context, job lease.Job, d lease.Daemon, lines []string) ([]string, error) {
	bound, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	output, err := c.run(bound, job, d, strings.Join(lines, "\n")+"\n")
	if errors.Is(err, site.ErrNoAnswer) {
		return nil, err
	}
	return readAnswer(output, err)
}

// readAnswer reads the output first. The exit code counts only if the output is empty or unknown.
func readAnswer(output string, exit error) ([]string, error) {
	output = strings.TrimSpace(output)
	switch {
	case strings.Contains(output, "Cannot find MPS control daemon process"):
		return nil, &site.AsUserError{Err: site.ErrDaemonDown}
	case strings.Contains(output, "Cannot send command to MPS control daemon process"):
		return nil, &site.AsUserError{Err: errTransient}
	case exit != nil:
		return nil, fmt.Errorf("%w%s", exit, quoted(output))
	case output == "":
		return nil, nil
	}
	return strings.Split(output, "\n"), nil
}

// userErrorf is an error about the daemon's answer, which the user may have made up.
func userErrorf(format string, values ...any) error {
	return &site.AsUserError{Err: fmt.Errorf(format, values...)}
}

// Configure waits for the daemon's first answer, sets the limits and reads them back. It also starts the server, so
// that the first rank finds one. The server's start takes 140 ms and is not waited for.
//
// The first answer comes 2 to 5 ms after the daemon listens (measured). The control program takes as long for one
// line as for three, so all lines are sent at once. The server's line is the last, because limits apply only to
// servers that start later.
func (c ControlProgram) Configure(ctx context.Context, job lease.Job, d lease.Daemon, limits lease.Limits) error {
	lines := append(configuration(limits), fmt.Sprintf("start_server -uid %d", job.UID))
	timeout := wait.AtMostThird(ctx, firstAnswer)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		answer, err := c.ask(ctx, job, d, lines...)
		if err == nil && len(answer) > 0 {
			return readBack(d, limits, answer)
		}
		if err != nil && !errors.Is(err, site.ErrDaemonDown) && !errors.Is(err, errTransient) {
			return err
		}
		if !wait.Sleep(ctx, 2*time.Millisecond) {
			return userErrorf("cannot prepare daemon of %s: no answer within %v: %w", d.PipeDir, timeout.Round(time.Second),
				errors.Join(err, ctx.Err()))
		}
	}
}

// configuration returns the lines that set and read limits. A limit of memory by UUID has no effect, one by the place of
// the device among the daemon's has (measured).
func configuration(limits lease.Limits) (lines []string) {
	if limits.Ceiling < whole {
		lines = append(lines, "set_default_active_thread_percentage "+limits.Ceiling.String())
	}
	lines = append(lines, "get_default_active_thread_percentage")
	for i, mib := range limits.MemoryMiB {
		lines = append(lines, fmt.Sprintf("set_default_device_pinned_mem_limit %d %dM", i, mib), fmt.Sprintf("get_default_device_pinned_mem_limit %d", i))
	}
	return lines
}

const whole = policy.Percent(100_000_000)

// serverStart limits the start of a server, which takes 140 ms on an idle node (measured).
const serverStart = 20 * time.Second

// WaitServer waits until the daemon has a server that serves.
func (c ControlProgram) WaitServer(ctx context.Context, job lease.Job, d lease.Daemon) error {
	ctx, cancel := context.WithTimeout(ctx, serverStart)
	defer cancel()
	for {
		state, err := c.State(ctx, job, d)
		if err == nil && slices.ContainsFunc(state.Servers, func(s Server) bool { return s.Status == "ACTIVE" }) {
			return nil
		}
		if !wait.Sleep(ctx, 5*time.Millisecond) {
			return userErrorf("the daemon of %s has no server after %v: is the GPU used by another process in EXCLUSIVE_PROCESS mode?%s", d.PipeDir,
				serverStart, logTail(d.LogDir, job.UID))
		}
	}
}

// readBack compares the daemon's answer with the limits. The daemon prints one decimal of the ceiling (measured:
// 33.333334 is 33.3), in a line for each set and get. It prints a line for each get of a limit of memory, in whole GiB
// (measured: 71577M is 69G), and none for start_server unless that fails.
func readBack(d lease.Daemon, limits lease.Limits, answer []string) error {
	questions := 1
	if limits.Ceiling < whole {
		questions = 2
	}
	if len(answer) != questions+len(limits.MemoryMiB) {
		return userErrorf("cannot prepare daemon of %s: unexpected answer %s", d.PipeDir, excerpt(answer...))
	}
	reported, err := strconv.ParseFloat(answer[questions-1], 64)
	if err != nil || math.Abs(reported-float64(limits.Ceiling)/1e6) > 0.0501 {
		return userErrorf("cannot set ceiling of daemon of %s to %s percent: it answers %s", d.PipeDir, limits.Ceiling, excerpt(answer[questions-1]))
	}
	for i, mib := range limits.MemoryMiB {
		if reported := answer[questions+i]; reported != fmt.Sprintf("%dM", mib) && reported != fmt.Sprintf("%dG", mib/1024) {
			return userErrorf("cannot limit memory of daemon of %s to %d MiB: it answers %s", d.PipeDir, mib, excerpt(reported))
		}
	}
	return nil
}

// Ping checks that the daemon answers. The error wraps site.ErrDaemonDown or site.ErrNoAnswer.
func (c ControlProgram) Ping(ctx context.Context, job lease.Job, d lease.Daemon) error {
	_, err := c.ask(ctx, job, d, "get_default_active_thread_percentage")
	return err
}

// Clients lists the clients of all servers. A dropped question may give an empty answer, which would look like no
// clients. So a second question that always has an answer is sent with it.
func (c ControlProgram) Clients(ctx context.Context, job lease.Job, d lease.Daemon) ([]site.Client, error) {
	for try := 1; ; try++ {
		answer, err := c.ask(ctx, job, d, "ps", "get_default_active_thread_percentage")
		if err != nil {
			return nil, err
		}
		if len(answer) > 0 {
			rows, err := parseRows(answer[:len(answer)-1])
			return clientsOf(rows), err
		}
		if try == askTries {
			return nil, fmt.Errorf("cannot ask daemon of %s for its clients: %w", d.PipeDir, errTransient)
		}
	}
}

// clientsOf returns the clients in some rows of ps. A client on several devices has several rows.
func clientsOf(rows []ClientRow) (clients []site.Client) {
	for _, row := range rows {
		if client := (site.Client{Server: row.Server, PID: row.PID}); !slices.Contains(clients, client) {
			clients = append(clients, client)
		}
	}
	return clients
}

// ServerStatus asks once for the state of a server, such as ACTIVE. The daemon drops a third of the questions that ranks
// ask at the same time (measured). A dropped question is an error.
func (c ControlProgram) ServerStatus(ctx context.Context, job lease.Job, d lease.Daemon, server int) (string, error) {
	answer, err := c.askOnce(ctx, job, d, []string{fmt.Sprintf("get_server_status %d", server)})
	if err == nil && (len(answer) != 1 || !isStatus(answer[0])) {
		err = fmt.Errorf("it answers %s", excerpt(answer...))
	}
	if err != nil {
		return "", fmt.Errorf("cannot ask daemon: %w", err)
	}
	return answer[0], nil
}

// Terminate makes the server end a client. The client's work in flight then harms no other client; its own calls
// return 810. The call hangs if the client is stopped (measured), so callers do not ask for such a client. It must
// not be repeated.
func (c ControlProgram) Terminate(ctx context.Context, job lease.Job, d lease.Daemon, client site.Client) error {
	defer serialise(ctx, d, os.O_CREATE)()
	answer, err := c.askUntilAnswered(ctx, 1, job, d, []string{fmt.Sprintf("terminate_client %d %d", client.Server, client.PID)})
	if err != nil {
		return err
	}
	if len(answer) != 1 || strings.TrimSpace(answer[0]) != "0" {
		return fmt.Errorf("cannot terminate client %d: the daemon answers %s", client.PID, excerpt(answer...))
	}
	return nil
}

// maxQuitPause is the maximum time between two searches for servers that have outlived their daemon.
const maxQuitPause = 64 * time.Millisecond

// Quit makes the daemon end itself and its servers, and waits until all of them have ended. That takes 70 to 105 ms
// if no client is left (measured). A daemon that is not running has quit.
func (c ControlProgram) Quit(ctx context.Context, job lease.Job, d lease.Daemon) error {
	if _, err := c.ask(ctx, job, d, "quit"); err != nil && !errors.Is(err, site.ErrDaemonDown) {
		return err
	}
	for pause := time.Millisecond; ; {
		var processes []proc.Process
		if !d.Proc.Running() { // the search for all processes is expensive, and the daemon ends last
			var err error
			pause = min(2*pause, maxQuitPause)
			if processes, err = c.Processes(job, d); err != nil || len(processes) == 0 {
				return err
			}
		}
		if genuine, impostors := sorted(processes, d); len(genuine) == 0 && len(impostors) > 0 {
			return fmt.Errorf("cannot end all of %s by quit: %d other processes look like the daemon: %w", d.PipeDir, len(impostors), site.ErrImpostors)
		}
		if !wait.Sleep(ctx, pause) {
			return fmt.Errorf("cannot end daemon of %s by quit: %s %v is still there", d.PipeDir, d.Proc, processes)
		}
	}
}
