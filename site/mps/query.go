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
	"golang.org/x/sys/unix"
)

// Bounds of one question. An answer takes 2 to 5 ms and terminate_client up to 311 ms (measured); a third of questions
// asked at the same time as others fail, so a question is asked again, a bounded number of times.
const (
	askDeadline = 5 * time.Second
	firstAnswer = 10 * time.Second
	askTries    = 6
	lockTimeout = 2 * time.Second
)

// errTransient is a question that failed in a way that a busy daemon makes it fail.
var errTransient = errors.New("the daemon dropped the question")

// ask puts command lines to the daemon, one connection for all, and returns the lines of the answer. A line that
// answers nothing leaves no line. The error wraps site.ErrDaemonDown or site.ErrNoAnswer.
func (c ControlProgram) ask(ctx context.Context, job lease.Job, d lease.Daemon, lines ...string) ([]string, error) {
	return c.askTimes(ctx, askTries, job, d, lines...)
}

func (c ControlProgram) askTimes(ctx context.Context, tries int, job lease.Job, d lease.Daemon, lines ...string) ([]string, error) {
	unlock := serialise(ctx, d, os.O_CREATE)
	defer unlock()
	return c.askUntilAnswered(ctx, tries, job, d, lines)
}

// askUntilAnswered asks until there is an answer, whoever else asks.
func (c ControlProgram) askUntilAnswered(ctx context.Context, tries int, job lease.Job, d lease.Daemon, lines []string) ([]string, error) {
	pause := 5 * time.Millisecond
	for try := 1; ; try++ {
		answer, err := c.askOnce(ctx, job, d, lines)
		if !errors.Is(err, errTransient) || try == tries {
			if err != nil {
				return nil, fmt.Errorf("cannot ask daemon of %s %q: %w", d.PipeDir, lines[0], err)
			}
			return answer, nil
		}
		if !site.Sleep(ctx, pause) {
			return nil, fmt.Errorf("cannot ask daemon of %s %q: %w", d.PipeDir, lines[0], err)
		}
		pause *= 2
	}
}

// serialise makes questions to one daemon take turns. The lock lies in root's folder above the pipe folder. Whoever
// cannot have it asks all the same after a while: the tries are there for that. Who changes nothing makes no lock either:
// a file that comes while an epilog removes the folder would fail it.
func serialise(ctx context.Context, d lease.Daemon, create int) (unlock func()) {
	path := filepath.Join(filepath.Dir(d.PipeDir), "lock")
	file, err := os.OpenFile(path, os.O_RDONLY|create|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return func() {}
	}
	patience, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	_ = site.Flock(patience, file)
	return func() { file.Close() }
}

func (c ControlProgram) askOnce(ctx context.Context, job lease.Job, d lease.Daemon, lines []string) ([]string, error) {
	bound, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	said, err := c.run(bound, job, d, strings.Join(lines, "\n")+"\n")
	if errors.Is(err, site.ErrNoAnswer) {
		return nil, err
	}
	return readAnswer(said, err)
}

// readAnswer reads the answer: the words first, the exit code only where the words say nothing.
func readAnswer(said string, exit error) ([]string, error) {
	said = strings.TrimSpace(said)
	switch {
	case strings.Contains(said, "Cannot find MPS control daemon process"):
		return nil, &site.AsUserError{Err: site.ErrDaemonDown}
	case strings.Contains(said, "Cannot send command to MPS control daemon process"):
		return nil, &site.AsUserError{Err: errTransient}
	case exit != nil:
		return nil, fmt.Errorf("%w%s", exit, quoted(said))
	case said == "":
		return nil, nil
	}
	return strings.Split(said, "\n"), nil
}

// userErrorf is an error about what a daemon says: the user may have put the words into its mouth.
func userErrorf(format string, values ...any) error {
	return &site.AsUserError{Err: fmt.Errorf(format, values...)}
}

// Configure waits for the daemon's first answer, sets the ceiling and reads it back, and has the server started ahead, so that
// the first rank finds it: that takes 140 ms and is not waited for. The first answer comes 2 to 5 ms after the daemon listens
// (measured), and the control program takes as long for one line as for three, so all go to it at once. The server comes
// last, since a ceiling reaches servers that are started later only.
func (c ControlProgram) Configure(ctx context.Context, job lease.Job, d lease.Daemon, ceiling policy.Percent) error {
	lines := []string{"get_default_active_thread_percentage", fmt.Sprintf("start_server -uid %d", job.UID)}
	if ceiling < whole {
		lines = append([]string{"set_default_active_thread_percentage " + ceiling.String()}, lines...)
	}
	patience := atMostThird(ctx, firstAnswer)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		answer, err := c.ask(ctx, job, d, lines...)
		if err == nil && len(answer) > 0 {
			return readBack(d, ceiling, answer)
		}
		if err != nil && !errors.Is(err, site.ErrDaemonDown) && !errors.Is(err, errTransient) {
			return err
		}
		if !site.Sleep(ctx, 2*time.Millisecond) {
			return userErrorf("cannot prepare daemon of %s: no answer within %v: %w", d.PipeDir, patience.Round(time.Second), errors.Join(err, ctx.Err()))
		}
	}
}

const whole = policy.Percent(100_000_000)

// readBack holds the daemon's word against the ceiling. It prints one decimal (measured: 33.333334 is 33.3), a line for
// each of set and get, and none for start_server unless it complains.
func readBack(d lease.Daemon, ceiling policy.Percent, answer []string) error {
	questions := 1
	if ceiling < whole {
		questions = 2
	}
	if len(answer) != questions {
		return userErrorf("cannot prepare daemon of %s: unexpected answer %s", d.PipeDir, excerpt(answer...))
	}
	said, err := strconv.ParseFloat(answer[questions-1], 64)
	if err != nil || math.Abs(said-float64(ceiling)/1e6) > 0.0501 {
		return userErrorf("cannot set ceiling of daemon of %s to %s percent: it says %s", d.PipeDir, ceiling, excerpt(answer[questions-1]))
	}
	return nil
}

// Ping asks whether the daemon answers: nil, or an error that wraps site.ErrDaemonDown or site.ErrNoAnswer.
func (c ControlProgram) Ping(ctx context.Context, job lease.Job, d lease.Daemon) error {
	_, err := c.ask(ctx, job, d, "get_default_active_thread_percentage")
	return err
}

// Clients lists the clients of all servers. A dropped question may leave an empty answer, which would read as no clients,
// so a second question that is never without an answer goes along.
func (c ControlProgram) Clients(ctx context.Context, job lease.Job, d lease.Daemon) ([]site.Client, error) {
	for try := 1; ; try++ {
		answer, err := c.ask(ctx, job, d, "ps", "get_default_active_thread_percentage")
		if err != nil {
			return nil, err
		}
		if len(answer) > 0 {
			return parseClients(answer[:len(answer)-1])
		}
		if try == askTries {
			return nil, fmt.Errorf("cannot ask daemon of %s for its clients: %w", d.PipeDir, errTransient)
		}
	}
}

// maxClients is far above what the servers of one node can serve: 60 for each of 16 GPUs.
const maxClients = 1024

// parseClients reads the table that ps prints, a row for each client and device:
//
//	PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND
//	670       2         624            GPU-5c872127-92d8-e70b    4026531836     /tmp/p/spin
func parseClients(table []string) ([]site.Client, error) {
	var clients []site.Client
	for _, line := range table {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "PID" || strings.HasPrefix(line, "Server ") && strings.HasSuffix(line, "not found") {
			continue
		}
		if len(fields) < 3 {
			return nil, fmt.Errorf("cannot read list of clients: unexpected line %s", excerpt(line))
		}
		pid, err1 := strconv.Atoi(fields[0])
		server, err2 := strconv.Atoi(fields[2])
		if err1 != nil || err2 != nil || pid <= 0 || server <= 0 {
			return nil, fmt.Errorf("cannot read list of clients: unexpected line %s", excerpt(line))
		}
		if client := (site.Client{Server: server, PID: pid}); !slices.Contains(clients, client) {
			clients = append(clients, client)
		}
		if len(clients) > maxClients {
			return nil, fmt.Errorf("cannot read list of clients: it names more than %d", maxClients)
		}
	}
	return clients, nil
}

// Terminate has the server end a client. The client's work in flight harms nobody then; its own calls return 810. It
// hangs for a client that is stopped (measured), so callers do not ask for one. It is not to be repeated.
func (c ControlProgram) Terminate(ctx context.Context, job lease.Job, d lease.Daemon, client site.Client) error {
	answer, err := c.askTimes(ctx, 1, job, d, fmt.Sprintf("terminate_client %d %d", client.Server, client.PID))
	if err != nil {
		return err
	}
	if len(answer) != 1 || strings.TrimSpace(answer[0]) != "0" {
		return fmt.Errorf("cannot terminate client %d: the daemon says %s", client.PID, excerpt(answer...))
	}
	return nil
}

// Quit has the daemon end itself and its servers, and waits until all of them are gone. That takes 70 to 105 ms where no
// client is left (measured). A daemon that is not there has quit.
func (c ControlProgram) Quit(ctx context.Context, job lease.Job, d lease.Daemon) error {
	if _, err := c.ask(ctx, job, d, "quit"); err != nil && !errors.Is(err, site.ErrDaemonDown) {
		return err
	}
	for {
		var family []site.Process
		if !d.Proc.Running() { // to look for all of the family is dear, and the daemon goes last
			var err error
			if family, err = c.Processes(job, d); err != nil || len(family) == 0 {
				return err
			}
		}
		if genuine, mimics := sorted(family, d); len(genuine) == 0 && len(mimics) > 0 {
			return fmt.Errorf("cannot end all of %s by quit: %d other processes look like the daemon: %w", d.PipeDir, len(mimics), site.ErrImpostors)
		}
		if !site.Sleep(ctx, time.Millisecond) {
			return fmt.Errorf("cannot end daemon of %s by quit: %s %v is still there", d.PipeDir, d.Proc, family)
		}
	}
}
