// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Result is what a command did. Exit is 128 plus the signal's number where it died of one.
type Result struct {
	Stdout, Stderr string
	Exit           int
}

// Home is a user's folder below Dir, where Run's commands start and sbatch writes its files. It is made when asked for.
func (c *Cluster) Home(user User) (string, error) {
	path := filepath.Join(c.opts.Dir, "home", user.Name)
	if err := makeDir(path, 0o755); err != nil {
		return "", err
	}
	if err := os.Chown(path, int(user.UID), int(user.GID)); err != nil {
		return "", fmt.Errorf("cannot give %s to %s: %w", path, user.Name, err)
	}
	return path, nil
}

// clientGrace is how long a command whose context has ended may take to tidy up after SIGTERM: srun ends its step then.
const clientGrace = 5 * time.Second

// Command prepares a command as a user, in that user's Home, with Env and the user's names for its environment, and
// with nothing of the caller's. A name without a slash is looked for in Env's PATH. When the context ends it gets
// SIGTERM, and SIGKILL some seconds later.
func (c *Cluster) Command(ctx context.Context, user User, name string, args ...string) (*exec.Cmd, error) {
	file, err := c.tree.look(name)
	if err != nil {
		return nil, err
	}
	home, err := c.Home(user)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Args[0] = name
	cmd.Dir = home
	cmd.Env = append(c.Env(), "HOME="+home, "USER="+user.Name, "LOGNAME="+user.Name, "LANG=C")
	// The keyring and the terminal stay the caller's; the group of processes does not, so that Ctrl-C in a test's
	// terminal ends the test, whose Stop then ends this in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true,
		Credential: &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: []uint32{user.GID}}}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = clientGrace
	return cmd, nil
}

// Run runs a command as a user and waits for it. Its exit code is no error; err says that the command could not be
// started, or that the context ended before it did, and then the Result holds what it had printed.
func (c *Cluster) Run(ctx context.Context, user User, name string, args ...string) (Result, error) {
	cmd, err := c.Command(ctx, user, name, args...)
	if err != nil {
		return Result{}, fmt.Errorf("cannot run %s: %w", name, err)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	r := Result{Stdout: stdout.String(), Stderr: stderr.String(), Exit: exitCode(cmd.ProcessState)}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return r, fmt.Errorf("cannot finish %s: %w", name, ctx.Err())
	case errors.Is(err, exec.ErrWaitDelay): // it has ended; who else has its output is not its affair
	case err != nil && !errors.As(err, &exit):
		return r, fmt.Errorf("cannot run %s: %w", name, err)
	}
	return r, nil
}

func exitCode(state *os.ProcessState) int {
	if state == nil {
		return -1
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}

// askLimit bounds one question to the controller; it answers in some 10 ms.
const askLimit = 10 * time.Second

// ask runs a Slurm command as root and returns what it printed; an exit code other than 0 is an error.
func (c *Cluster) ask(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	r, err := c.Run(ctx, Root, name, args...)
	if err != nil {
		return "", err
	}
	if r.Exit != 0 {
		return "", fmt.Errorf("cannot run %s %s: exit code %d: %s", name, strings.Join(args, " "), r.Exit,
			strings.TrimSpace(r.Stdout+r.Stderr))
	}
	return r.Stdout, nil
}

// NodeState returns a node's state as scontrol prints it, "IDLE", "MIXED", "IDLE+DRAIN", and the reason that Slurm or
// an administrator gave for it, "Prolog error", or "".
func (c *Cluster) NodeState(ctx context.Context, node string) (state, reason string, err error) {
	out, err := c.ask(ctx, "scontrol", "show", "node", node)
	if err != nil {
		return "", "", fmt.Errorf("cannot ask for the state of node %s: %w", node, err)
	}
	return parseNode(out)
}

// parseNode reads scontrol's paragraph of a node. The reason has its line to itself, and ends with who gave it.
func parseNode(text string) (state, reason string, err error) {
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if value, ok := strings.CutPrefix(line, "State="); ok {
			state, _, _ = strings.Cut(value, " ")
		}
		if value, ok := strings.CutPrefix(line, "Reason="); ok {
			reason, _, _ = strings.Cut(value, " [")
		}
	}
	if state == "" {
		return "", "", fmt.Errorf("cannot find State= in scontrol's answer: %q", text)
	}
	return state, reason, nil
}

// pollEvery is how often the controller is asked while something is waited for.
const pollEvery = 50 * time.Millisecond

// waitLimit bounds the waits below where the caller's context has no deadline.
const waitLimit = 60 * time.Second

// WaitNode polls until is says yes to the node's state, and returns that state and its reason.
func (c *Cluster) WaitNode(ctx context.Context, node string, is func(state string) bool) (state, reason string, err error) {
	ctx, cancel := withLimit(ctx, waitLimit)
	defer cancel()
	err = until(ctx, pollEvery, func() (done bool, err error) {
		state, reason, err = c.NodeState(ctx, node)
		return err == nil && is(state), err
	})
	if err != nil {
		return state, reason, fmt.Errorf("cannot wait for node %s, which is %q: %w", node, state, err)
	}
	return state, reason, nil
}

// Resume takes a node out of DRAIN or DOWN, and returns when Slurm says so.
func (c *Cluster) Resume(ctx context.Context, node string) error {
	if _, err := c.ask(ctx, "scontrol", "update", "NodeName="+node, "State=RESUME"); err != nil {
		return fmt.Errorf("cannot resume node %s: %w", node, err)
	}
	_, _, err := c.WaitNode(ctx, node, func(state string) bool {
		return !strings.Contains(state, "DRAIN") && !strings.Contains(state, "DOWN")
	})
	return err
}

// Submit runs sbatch as a user and returns the job's id.
func (c *Cluster) Submit(ctx context.Context, user User, args ...string) (int, error) {
	r, err := c.Run(ctx, user, "sbatch", append([]string{"--parsable"}, args...)...)
	if err != nil {
		return 0, err
	}
	id, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
	if r.Exit != 0 || err != nil {
		return 0, fmt.Errorf("cannot submit a job: sbatch's exit code %d: %s", r.Exit, strings.TrimSpace(r.Stdout+r.Stderr))
	}
	return id, nil
}

// Job is what scontrol says of a job.
type Job struct {
	ID     int
	State  string // "COMPLETED", "FAILED", "CANCELLED", "PENDING", …
	Reason string // why it waits, "JobHeldUser", "launch_failed_requeued_held", or "None"
	Exit   int    // the batch script's exit code
	Signal int    // of which it died, or 0
	Nodes  string // "n[1-2]"
	Fields map[string]string
}

// Held says whether the job waits for an administrator, as it does after a failed prolog.
func (j Job) Held() bool {
	return j.State == "PENDING" && (strings.Contains(strings.ToLower(j.Reason), "held") || j.Fields["Priority"] == "0")
}

// Over says whether the job has ended and its epilogs have run.
func (j Job) Over() bool {
	switch j.State {
	case "PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING", "REQUEUED":
		return false
	}
	return true
}

// Job asks for a job's present state.
func (c *Cluster) Job(ctx context.Context, id int) (Job, error) {
	out, err := c.ask(ctx, "scontrol", "show", "job", strconv.Itoa(id))
	if err != nil {
		return Job{}, fmt.Errorf("cannot ask for job %d: %w", id, err)
	}
	return parseJobs(out)
}

// parseJobs reads the paragraphs of a job array's elements, one for other jobs. It returns the first element that is
// not over, or else the last.
func parseJobs(text string) (j Job, err error) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if j, err = parseJob(paragraph); err != nil || !j.Over() {
			return j, err
		}
	}
	return j, nil
}

// parseJob reads scontrol's paragraph of a job: words NAME=VALUE. Values with blanks (Comment, Command) are cut short.
func parseJob(text string) (Job, error) {
	fields := map[string]string{}
	for _, word := range strings.Fields(text) {
		if name, value, ok := strings.Cut(word, "="); ok {
			fields[name] = value
		}
	}
	id, err := strconv.Atoi(fields["JobId"])
	if err != nil || fields["JobState"] == "" {
		return Job{}, fmt.Errorf("cannot find JobId= and JobState= in scontrol's answer: %q", text)
	}
	code, signal, _ := strings.Cut(fields["ExitCode"], ":")
	j := Job{ID: id, State: fields["JobState"], Reason: fields["Reason"], Nodes: fields["NodeList"], Fields: fields}
	j.Exit, _ = strconv.Atoi(code)     // absent for a job that never ran
	j.Signal, _ = strconv.Atoi(signal) // likewise
	return j, nil
}

// WaitJob waits until a job is over, its epilogs included, or held. A held job is no error: look at Held.
func (c *Cluster) WaitJob(ctx context.Context, id int) (Job, error) {
	return c.WaitJobUntil(ctx, id, func(j Job) bool { return j.Over() || j.Held() })
}

// WaitJobUntil polls until is says yes to the job.
func (c *Cluster) WaitJobUntil(ctx context.Context, id int, is func(Job) bool) (j Job, err error) {
	ctx, cancel := withLimit(ctx, waitLimit)
	defer cancel()
	err = until(ctx, pollEvery, func() (done bool, err error) {
		j, err = c.Job(ctx, id)
		return err == nil && is(j), err
	})
	if err != nil {
		return j, fmt.Errorf("cannot wait for job %d, which is %s %s: %w", id, j.State, j.Reason, err)
	}
	return j, nil
}
