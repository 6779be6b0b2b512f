// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"golang.org/x/sys/unix"
)

// Crew is the set of ranks of one launch on a node.
type Crew struct {
	p     Node
	ranks []*exec.Cmd
	said  []*bytes.Buffer // the stdout and stderr of each rank; read them when the rank has ended
	ended []chan struct{}
}

// Launch starts n ranks of the job's user at the same time. Each is mpirun-wrap with the given command line.
func (p Node) Launch(n int, line ...string) Crew {
	p.T.Helper()
	return p.LaunchAs(UID, n, nil, line...)
}

// LaunchAs starts the ranks as another user and with more variables. PMIX_NAMESPACE distinguishes the launches of one
// job.
func (p Node) LaunchAs(user uint32, n int, extra []string, line ...string) Crew {
	p.T.Helper()
	c := Crew{p: p}
	places := "0"
	for rank := 1; rank < n; rank++ {
		places += fmt.Sprintf(",%d", rank)
	}
	for rank := range n {
		cmd := p.AsUser(7, p.Command("mpirun-wrap", line...))
		cmd.Env = append(cmd.Env, append([]string{fmt.Sprintf("SLURM_LOCALID=%d", rank), "SLURM_GTIDS=" + places}, extra...)...)
		cmd.SysProcAttr.Credential.Uid, cmd.SysProcAttr.Setpgid = user, true
		said, ended := &bytes.Buffer{}, make(chan struct{})
		cmd.Stdout, cmd.Stderr = said, said
		must.OK(p.T, cmd.Start())
		go func() { _ = cmd.Wait(); close(ended) }()
		p.T.Cleanup(func() { _ = node.SignalGroup(cmd, unix.SIGKILL); <-ended })
		c.ranks, c.said, c.ended = append(c.ranks, cmd), append(c.said, said), append(c.ended, ended)
	}
	return c
}

// End waits for all ranks and returns their exit codes, and the lines that mpirun-wrap printed.
func (c Crew) End() (codes []int, lines []string) {
	c.p.T.Helper()
	for i, ended := range c.ended {
		select {
		case <-ended:
		case <-time.After(WaitLimit):
			c.p.T.Fatalf("rank %d still runs after %v", i, WaitLimit)
		}
		codes = append(codes, c.ranks[i].ProcessState.ExitCode())
		for line := range strings.Lines(c.said[i].String()) {
			if strings.HasPrefix(line, "mpirun-wrap: ") {
				lines = append(lines, line)
			}
		}
	}
	return codes, lines
}

// Out returns what the programs printed themselves.
func (c Crew) Out() string {
	var all strings.Builder
	for _, said := range c.said {
		for line := range strings.Lines(said.String()) {
			if !strings.HasPrefix(line, "mpirun-wrap: ") {
				all.WriteString(line)
			}
		}
	}
	return all.String()
}
