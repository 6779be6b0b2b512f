// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl audit: use of GPUs against the policy.

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
)

const auditHelp = `audit finds use of this node's GPUs against the policy, and changes nothing:
  process-without-mps          a process computes on a job's GPU and is no client of MPS
  client-of-another-daemon     a client of MPS on a job's GPU that the job's daemon does not serve
  client-without-share         a client has no share, although the rule gives each client one
  client-without-memory-limit  a client has no memory limit, although the rule grants one
  ceiling-lifted               a daemon lets its clients have more than the ceiling granted
  exclusive-without-lease      a GPU is in mode exclusive_process, and no job holds it
  daemon-without-lease         a control daemon below our folder that no lease names
  daemon-not-of-a-lease        any other MPS control daemon
A finding was seen twice.

It exits with 0 if everything was seen and nothing was found, with 1 otherwise, and with 2 for a wrong flag. Only root
can see everything.`

func auditCommand(call *command.Invocation) *cobra.Command {
	return &cobra.Command{
		Use: "audit", Short: "find what uses this node's GPUs past the policy", Long: auditHelp,
		Example: "  mpsctl audit\n  mpsctl audit --json | jq -r '.findings[].kind'",
		Args:    command.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			n, found, err := look(call, "audit", true, noLimit, state.Violations)
			if err != nil {
				return err
			}
			return printAudit(call, newReport(n, found))
		},
	}
}

type auditReport struct {
	Node     string          `json:"node"`
	Time     time.Time       `json:"time"`
	Complete bool            `json:"complete"` // everything was seen
	Seen     seen            `json:"counts"`
	Findings []state.Finding `json:"findings"`
	Unseen   []string        `json:"errors"`
}

type seen struct {
	GPUs      int `json:"gpus"`
	Jobs      int `json:"jobs"`
	Daemons   int `json:"daemons"`
	Clients   int `json:"clients"`
	Processes int `json:"processes"` // that have a compute context, with servers and clients
}

func newReport(n state.Node, found []state.Finding) auditReport {
	r := auditReport{Node: n.Name, Time: n.Time, Findings: found, Unseen: unseen(n)}
	processes := map[int]bool{}
	for _, j := range n.Jobs {
		r.Seen.Daemons += len(j.Daemons)
	}
	for _, g := range n.GPUs {
		for _, p := range g.Processes {
			processes[p.PID] = true
		}
	}
	r.Seen.GPUs, r.Seen.Jobs, r.Seen.Clients, r.Seen.Processes = len(n.GPUs), len(n.Jobs), n.Clients(), len(processes)
	r.Complete = len(r.Unseen) == 0
	return r
}

// unseen lists the parts that an audit could not see: parts of the node, clients with unknown limits, and daemons that
// did not list their clients.
func unseen(n state.Node) []string {
	missed := append([]string{}, n.Incomplete...)
	for _, j := range n.Jobs {
		for _, d := range j.Daemons {
			switch d.State {
			case state.NoAnswer, state.NotServing, state.Unclear, state.Replaced:
				missed = append(missed, fmt.Sprintf("the clients of job %d: its daemon (pid %d) is %s: see mpsctl status",
					j.ID, d.PID, d.State))
			}
		}
		for _, held := range j.Devices {
			for _, c := range held.Clients {
				if c.Unknown != "" {
					missed = append(missed, fmt.Sprintf("the limits of client %d of job %d: %s", c.PID, j.ID, c.Unknown))
				}
			}
		}
	}
	return missed
}

func printAudit(call *command.Invocation, r auditReport) error {
	return call.PrintFindings("audit", r, r.text, len(r.Findings) > 0 || !r.Complete)
}

func (r auditReport) text(screen command.Screen) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s, %s, %s, %s\n", screen.Bold(r.Node), r.Time.Format("2006-01-02 15:04:05"),
		words.Count(r.Seen.GPUs, "GPU"), words.Count(r.Seen.Jobs, "job"), words.Count(r.Seen.Clients, "client"),
		words.Count(r.Seen.Processes, "compute process"))
	b.WriteString(findingsText(r.Findings, screen))
	b.WriteString(unseenText(r.Unseen, screen))
	switch {
	case len(r.Findings) == 0 && r.Complete:
		b.WriteString("nothing found\n")
	case len(r.Findings) == 0:
		b.WriteString("\nnothing found in what was seen\n")
	}
	return b.String()
}
