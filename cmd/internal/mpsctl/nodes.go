// SPDX-License-Identifier: Apache-2.0

// This file is the flag --nodes of mpsctl status and audit: one table of the answers of many nodes.

package mpsctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/spf13/cobra"
)

const nodesHelp = `

--nodes LIST asks each node of a Slurm host list, at most 32 at the same time and for 60 s at most, and prints one table.
The command is remote_shell of site.hcl ("ssh -o BatchMode=yes" without it), with the node's name and the command of
mpsctl behind it. It exits with 1 if a node has a finding, does not answer or could not see all.`

// The bounds of asking many nodes.
const (
	maxShells  = 32
	nodeTime   = 60 * time.Second
	expandTime = 10 * time.Second
	maxAnswer  = 8 << 20 // bytes of a node's answer
	maxNodes   = 10000
)

// nodesFlag adds --nodes to a command.
func nodesFlag(c *cobra.Command, list *string) {
	c.Flags().StringVarP(list, "nodes", "w", "", "ask the nodes of a Slurm host `LIST`, such as gpu[01-16]")
	c.Long += nodesHelp
}

// askNodes runs a command of mpsctl on each node of a list and prints one table.
func askNodes(call *Invocation, list string, command ...string) error {
	config, state := policyfile.ReadConfig(call.Paths)
	if state.Err != nil {
		return cli.RuntimeError{Err: fmt.Errorf("cannot ask nodes: %w", state.Err)}
	}
	ctx, stop := SignalContext()
	defer stop()
	nodes, err := expandNodes(ctx, list)
	if err != nil {
		return err
	}
	shell := strings.Fields(config.RemoteShell)
	answers := askEach(nodes, func(node string) inspect.Answer {
		return askNode(ctx, slices.Concat(shell, []string{node, "mpsctl"}, command, []string{"--json"}), node)
	})
	if ctx.Err() != nil {
		return cli.RuntimeError{Err: errors.New("cannot ask nodes: interrupted")}
	}
	return printNodes(call, answers)
}

// nodeName is a host's name. It cannot be taken for an option of the remote shell.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`)

// expandNodes returns the nodes of a Slurm host list, each once. Slurm or ClusterShell expands brackets.
func expandNodes(ctx context.Context, list string) ([]string, error) {
	names := strings.Split(list, ",")
	if strings.Contains(list, "[") {
		var err error
		if names, err = expandBrackets(ctx, list); err != nil {
			return nil, err
		}
	}
	var nodes []string
	for _, name := range names {
		if !nodeName.MatchString(name) {
			return nil, fmt.Errorf("cannot read --nodes %q: %q is no node's name: give a list such as gpu[01-16],big1", list, name)
		}
		if !slices.Contains(nodes, name) {
			nodes = append(nodes, name)
		}
	}
	if len(nodes) > maxNodes {
		return nil, fmt.Errorf("cannot ask %d nodes: at most %d are asked: give a shorter list", len(nodes), maxNodes)
	}
	return nodes, nil
}

func expandBrackets(ctx context.Context, list string) ([]string, error) {
	if strings.HasPrefix(list, "-") {
		return nil, fmt.Errorf("cannot read --nodes %q: it begins with -", list)
	}
	ctx, cancel := context.WithTimeout(ctx, expandTime)
	defer cancel()
	failed := errors.New("neither scontrol nor nodeset is on PATH")
	for _, line := range [][]string{{"scontrol", "show", "hostnames", list}, {"nodeset", "--expand", list}} {
		if _, err := exec.LookPath(line[0]); err != nil {
			continue
		}
		out, err := runBounded(ctx, line)
		if err == nil {
			return strings.Fields(string(out)), nil
		}
		failed = fmt.Errorf("%s: %w", line[0], err)
	}
	const do = "cannot expand --nodes %q: %s: name the nodes with commas"
	return nil, fmt.Errorf(do, list, site.OneLine(failed))
}

// askEach asks all nodes, some side by side, and keeps their order.
func askEach(nodes []string, ask func(string) inspect.Answer) []inspect.Answer {
	answers, free := make([]inspect.Answer, len(nodes)), make(chan struct{}, maxShells)
	done := make(chan struct{})
	for i, node := range nodes {
		go func() {
			free <- struct{}{}
			answers[i] = ask(node)
			<-free
			done <- struct{}{}
		}()
	}
	for range nodes {
		<-done
	}
	return answers
}

// askNode asks one node. mpsctl there exits with 1 if it has findings, so its answer decides and not its code.
func askNode(ctx context.Context, line []string, node string) inspect.Answer {
	ctx, cancel := context.WithTimeout(ctx, nodeTime)
	defer cancel()
	out, failed := runBounded(ctx, line)
	answer, err := inspect.ReadAnswer(out)
	answer.Node = node
	if err != nil && failed != nil {
		err = failed
	}
	if err != nil {
		return inspect.Unanswered(node, err)
	}
	return answer
}

// runBounded runs a program, bounded in time and output, and returns what it has printed. At the end of the time its
// whole process group is ended. The error has the last line of stderr.
func runBounded(ctx context.Context, line []string) ([]byte, error) {
	var out, stderr limited
	c := exec.CommandContext(ctx, line[0], line[1:]...)
	c.Stdout, c.Stderr = &out, &stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second // a program in the background may keep the pipes
	err := c.Run()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return out.text.Bytes(), errors.New("no answer in time")
	case out.full:
		return out.text.Bytes(), errTooLong
	case err == nil:
		return out.text.Bytes(), nil
	}
	text := bytes.TrimSpace(stderr.text.Bytes())
	if last := text[bytes.LastIndexByte(text, '\n')+1:]; len(last) > 0 {
		err = fmt.Errorf("%s (%w)", last, err)
	}
	return out.text.Bytes(), err
}

var errTooLong = fmt.Errorf("the answer is longer than %d MiB", maxAnswer>>20)

// limited is a buffer with a maximum size. It has no ReadFrom, because io.Copy would use that and exceed the maximum.
type limited struct {
	text bytes.Buffer
	full bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.full = l.full || l.text.Len()+len(p) > maxAnswer; l.full {
		return 0, errTooLong
	}
	return l.text.Write(p)
}

func printNodes(call *Invocation, answers []inspect.Answer) error {
	var err error
	if call.JSON {
		err = cli.WriteJSON(call.Out, struct {
			Nodes []inspect.Answer `json:"nodes"`
		}{answers})
	} else {
		_, err = io.WriteString(call.Out, nodesText(answers, call.Screen()))
	}
	if err != nil {
		return WriteError("nodes", err)
	}
	if slices.ContainsFunc(answers, func(a inspect.Answer) bool { return !a.Well() }) {
		return cli.ErrFindings
	}
	return nil
}

// nodesText is the table for people.
func nodesText(answers []inspect.Answer, screen Screen) string {
	width := len("node")
	for _, a := range answers {
		width = max(width, len(a.Node))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", screen.Faint(fmt.Sprintf("%-*s %5s %7s  findings", width, "node", "jobs", "clients")))
	odd, silent := 0, 0
	for _, a := range answers {
		name := fmt.Sprintf("%-*s", width, a.Node)
		if a.Failure != "" {
			silent++
			fmt.Fprintf(&b, "%s %5s %7s  %s\n", name, "-", "-", screen.Yellow("no answer: "+a.Failure))
			continue
		}
		if !a.Well() {
			odd++
		}
		fmt.Fprintf(&b, "%s %5d %7d  %s\n", name, a.Jobs, a.Clients, kinds(a, screen))
	}
	fmt.Fprintf(&b, "\n%s: %d with findings, %d without an answer\n", site.Count(len(answers), "node"), odd, silent)
	return b.String()
}

// kinds returns the kinds of findings. A kind that occurs more than once has its number.
func kinds(a inspect.Answer, screen Screen) string {
	number := counts{}
	for _, kind := range a.Findings {
		number[kind]++
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(number)) {
		if n := number[kind]; n > 1 {
			kind = fmt.Sprintf("%s (%d)", kind, n)
		}
		parts = append(parts, kind)
	}
	if len(parts) > 6 {
		parts = append(parts[:5], fmt.Sprintf("%d more kinds", len(parts)-5))
	}
	if a.Unseen > 0 {
		parts = append(parts, site.Count(a.Unseen, "part")+" not seen")
	}
	if len(parts) == 0 {
		return "-"
	}
	return screen.Red(strings.Join(parts, ", "))
}
