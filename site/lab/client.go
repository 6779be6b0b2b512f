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

// Result is the result of a command. If a signal killed the command, Exit is 128 plus the signal's number.
type Result struct {
	Stdout, Stderr string
	Exit           int
}

// Home returns a user's folder below Dir, and makes it if necessary. Run's commands start there, and sbatch writes
// its files there.
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

// clientGrace is the time that a command has after SIGTERM if its context has ended. srun ends its step in this time.
const clientGrace = 5 * time.Second

// Command prepares a command that runs as a user, in that user's Home. Its environment is Env and the user's names,
// and nothing from the caller's environment. A name without a slash is searched in Env's PATH. When the context ends,
// the command gets SIGTERM, and some seconds later SIGKILL.
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
	// The command keeps the caller's keyring and terminal. It has its own process group, so that Ctrl-C in a test's
	// terminal ends only the test. Stop of the test then ends this command in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true,
		Credential: &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: []uint32{user.GID}}}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = clientGrace
	return cmd, nil
}

// Run runs a command as a user and waits for it. An exit code other than 0 is no error. An error means that the
// command could not start, or that the context ended first. If the context ended first, the Result holds the output
// up to then.
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
	case errors.Is(err, exec.ErrWaitDelay): // the command has ended; another process may still hold its output
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

// askLimit bounds one request to the controller. The controller answers in about 10 ms.
const askLimit = 10 * time.Second

// ask runs a Slurm command as root and returns its output. An exit code other than 0 is an error.
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

// NodeState returns a node's state as scontrol prints it, for example "IDLE", "MIXED" or "IDLE+DRAIN". It also
// returns the reason that Slurm or an administrator gave for the state, for example "Prolog error", or "".
func (c *Cluster) NodeState(ctx context.Context, node string) (state, reason string, err error) {
	out, err := c.ask(ctx, "scontrol", "show", "node", node)
	if err != nil {
		return "", "", fmt.Errorf("cannot ask for the state of node %s: %w", node, err)
	}
	return parseNode(out)
}

// parseNode reads scontrol's paragraph of a node. The reason has its own line. At its end is the name of the person
// who gave it.
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

// pollEvery is the interval between two requests to the controller during a wait.
const pollEvery = 50 * time.Millisecond

// waitLimit bounds the waits below if the caller's context has no deadline.
const waitLimit = 60 * time.Second

// WaitNode polls until is returns true for the node's state. It returns that state and its reason.
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

// Resume takes a node out of DRAIN or DOWN, and returns when Slurm reports the new state.
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

// Job is a job as scontrol prints it.
type Job struct {
	ID     int
	State  string // "COMPLETED", "FAILED", "CANCELLED", "PENDING", …
	Reason string // why the job waits: "JobHeldUser", "launch_failed_requeued_held", or "None"
	Exit   int    // the batch script's exit code
	Signal int    // the signal that killed the batch script, or 0
	Nodes  string // "n[1-2]"
	Fields map[string]string
}

// Held reports whether the job waits for an administrator, for example after a failed prolog.
func (j Job) Held() bool {
	return j.State == "PENDING" && (strings.Contains(strings.ToLower(j.Reason), "held") || j.Fields["Priority"] == "0")
}

// Over reports whether the job has ended and its epilogs have run.
func (j Job) Over() bool {
	switch j.State {
	case "PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING", "REQUEUED":
		return false
	}
	return true
}

// Job returns a job's present state.
func (c *Cluster) Job(ctx context.Context, id int) (Job, error) {
	out, err := c.ask(ctx, "scontrol", "show", "job", strconv.Itoa(id))
	if err != nil {
		return Job{}, fmt.Errorf("cannot ask for job %d: %w", id, err)
	}
	return parseJobs(out)
}

// parseJobs reads scontrol's paragraphs: one for each element of a job array, or one for another job. It returns the
// first element that is not over. If all elements are over, it returns the last one.
func parseJobs(text string) (j Job, err error) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if j, err = parseJob(paragraph); err != nil || !j.Over() {
			return j, err
		}
	}
	return j, nil
}

// parseJob reads scontrol's paragraph of a job: words NAME=VALUE. It cuts values with blanks (Comment, Command) at
// the first blank.
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
	j.Signal, _ = strconv.Atoi(signal) // absent, too
	return j, nil
}

// WaitJob waits until a job is held, or over with all its epilogs. A held job is no error: check Held.
func (c *Cluster) WaitJob(ctx context.Context, id int) (Job, error) {
	return c.WaitJobUntil(ctx, id, func(j Job) bool { return j.Over() || j.Held() })
}

// WaitJobUntil polls until is returns true for the job.
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
