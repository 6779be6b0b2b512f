package mps

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
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
	askDeadline  = 5 * time.Second
	firstAnswer  = 10 * time.Second
	askTries     = 6
	lockPatience = 2 * time.Second
)

// errTransient is a question that failed in a way that a busy daemon makes it fail.
var errTransient = errors.New("the daemon dropped the question")

// ask puts command lines to the daemon, one connection for all, and returns the lines of the answer. A line that
// answers nothing leaves no line. The error wraps site.ErrNotServing or site.ErrWedged.
func (c Control) ask(ctx context.Context, job lease.Job, d lease.Daemon, lines ...string) ([]string, error) {
	return c.askTimes(ctx, askTries, job, d, lines...)
}

func (c Control) askTimes(ctx context.Context, tries int, job lease.Job, d lease.Daemon, lines ...string) ([]string, error) {
	unlock := serialise(ctx, d)
	defer unlock()
	pause := 5 * time.Millisecond
	for try := 1; ; try++ {
		answer, err := c.askOnce(ctx, job, d, lines)
		if !errors.Is(err, errTransient) || try == tries {
			if err != nil {
				return nil, fmt.Errorf("cannot ask daemon of %s %q: %w", d.PipeDir, lines[0], err)
			}
			return answer, nil
		}
		if !site.Pause(ctx, pause) {
			return nil, fmt.Errorf("cannot ask daemon of %s %q: %w", d.PipeDir, lines[0], err)
		}
		pause *= 2
	}
}

// serialise makes questions to one daemon take turns. The lock lies in root's folder above the pipe folder. Whoever
// cannot have it asks all the same after a while: the tries are there for that.
func serialise(ctx context.Context, d lease.Daemon) (unlock func()) {
	path := filepath.Join(filepath.Dir(d.PipeDir), "lock")
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return func() {}
	}
	patience, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	_ = site.Flock(patience, file)
	return func() { file.Close() }
}

func (c Control) askOnce(ctx context.Context, job lease.Job, d lease.Daemon, lines []string) ([]string, error) {
	bound, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	cmd, err := c.command(bound, job, d)
	if err != nil {
		return nil, err
	}
	answer := &bounded{}
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	cmd.Stdout, cmd.Stderr = answer, answer
	err = cmd.Run()
	if bound.Err() != nil {
		return nil, site.ErrWedged
	}
	return judge(answer.String(), released(err))
}

// judge reads the answer: the words first, the exit code only where the words say nothing.
func judge(said string, exit error) ([]string, error) {
	said = strings.TrimSpace(said)
	switch {
	case strings.Contains(said, "Cannot find MPS control daemon process"):
		return nil, site.ErrNotServing
	case strings.Contains(said, "Cannot send command to MPS control daemon process"):
		return nil, errTransient
	case exit != nil:
		return nil, fmt.Errorf("%w%s", exit, quoted(said))
	case said == "":
		return nil, nil
	}
	return strings.Split(said, "\n"), nil
}

// Prepare waits for the daemon's first answer, sets the ceiling and reads it back, and has the server started ahead
// without waiting for it. The first answer comes 2 to 5 ms after the daemon listens (measured).
func (c Control) Prepare(ctx context.Context, job lease.Job, d lease.Daemon, ceiling policy.Percent) error {
	lines := []string{"get_default_active_thread_percentage", fmt.Sprintf("start_server -uid %d", job.UID)}
	if ceiling < whole {
		lines = append([]string{"set_default_active_thread_percentage " + ceiling.String()}, lines...)
	}
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	for {
		answer, err := c.ask(ctx, job, d, lines...)
		if err == nil && len(answer) > 0 {
			return readBack(d, ceiling, answer)
		}
		if err != nil && !errors.Is(err, site.ErrNotServing) && !errors.Is(err, errTransient) {
			return err
		}
		if !site.Pause(ctx, 2*time.Millisecond) {
			return fmt.Errorf("cannot prepare daemon of %s: no answer within %v: %w", d.PipeDir, firstAnswer, errors.Join(err, ctx.Err()))
		}
	}
}

const whole = policy.Percent(100_000_000)

// readBack holds the daemon's word against the ceiling. It prints one decimal (measured: 33.333334 is 33.3), and a line
// for each of set and get; start_server is silent unless it complains.
func readBack(d lease.Daemon, ceiling policy.Percent, answer []string) error {
	questions := 1
	if ceiling < whole {
		questions = 2
	}
	if len(answer) != questions {
		return fmt.Errorf("cannot prepare daemon of %s: unexpected answer %q", d.PipeDir, answer)
	}
	said, err := strconv.ParseFloat(answer[questions-1], 64)
	if err != nil || math.Abs(said-float64(ceiling)/1e6) > 0.0501 {
		return fmt.Errorf("cannot set ceiling of daemon of %s to %s percent: it says %q", d.PipeDir, ceiling, answer[questions-1])
	}
	return nil
}

// Serves asks whether the daemon answers: nil, or an error that wraps site.ErrNotServing or site.ErrWedged.
func (c Control) Serves(ctx context.Context, job lease.Job, d lease.Daemon) error {
	_, err := c.ask(ctx, job, d, "get_default_active_thread_percentage")
	return err
}

// Clients lists the clients of all servers.
func (c Control) Clients(ctx context.Context, job lease.Job, d lease.Daemon) ([]site.Client, error) {
	servers, err := c.numbers(ctx, job, d, "get_server_list")
	if err != nil {
		return nil, err
	}
	var clients []site.Client
	for _, server := range servers {
		pids, err := c.numbers(ctx, job, d, fmt.Sprintf("get_client_list %d", server))
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			clients = append(clients, site.Client{Server: server, PID: pid})
		}
	}
	return clients, nil
}

// numbers asks for a list of pids. A dropped question may leave an empty answer, which would read as an empty list, so a
// second question that is never without an answer goes along. A server that went between two questions has no clients.
func (c Control) numbers(ctx context.Context, job lease.Job, d lease.Daemon, question string) ([]int, error) {
	for try := 1; ; try++ {
		answer, err := c.ask(ctx, job, d, question, "get_default_active_thread_percentage")
		if err != nil {
			return nil, err
		}
		if len(answer) > 0 {
			return pids(answer[:len(answer)-1], fmt.Sprintf("daemon of %s %q", d.PipeDir, question))
		}
		if try == askTries {
			return nil, fmt.Errorf("cannot ask daemon of %s %q: %w", d.PipeDir, question, errTransient)
		}
	}
}

func pids(answer []string, asked string) ([]int, error) {
	var list []int
	for _, line := range answer {
		if strings.HasPrefix(line, "Server ") && strings.HasSuffix(line, "not found") {
			return nil, nil
		}
		n, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("cannot ask %s: unexpected answer %q", asked, line)
		}
		list = append(list, n)
	}
	return list, nil
}

// Terminate has the server end a client. The client's work in flight harms nobody then; its own calls return 810. It
// hangs for a client that is stopped (measured), so callers do not ask for one. It is not to be repeated.
func (c Control) Terminate(ctx context.Context, job lease.Job, d lease.Daemon, client site.Client) error {
	answer, err := c.askTimes(ctx, 1, job, d, fmt.Sprintf("terminate_client %d %d", client.Server, client.PID))
	if err != nil {
		return err
	}
	if len(answer) != 1 || strings.TrimSpace(answer[0]) != "0" {
		return fmt.Errorf("cannot terminate client %d: the daemon says %q", client.PID, answer)
	}
	return nil
}

// Quit has the daemon end itself and its servers, and waits until all of them are gone. That takes 70 to 105 ms where no
// client is left (measured). A daemon that is not there has quit.
func (c Control) Quit(ctx context.Context, job lease.Job, d lease.Daemon) error {
	if _, err := c.ask(ctx, job, d, "quit"); err != nil && !errors.Is(err, site.ErrNotServing) {
		return err
	}
	for {
		family, err := c.living(job, d)
		if err != nil || len(family) == 0 {
			return err
		}
		if !site.Pause(ctx, 2*time.Millisecond) {
			return fmt.Errorf("cannot end daemon of %s by quit: %v is still there", d.PipeDir, family)
		}
	}
}
