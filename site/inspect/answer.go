// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/slurm-mps/slurm-mps/site"
)

// Answer is what another node has printed about itself. It contains only characters that a terminal prints.
type Answer struct {
	Node     string   `json:"node"`
	Jobs     int      `json:"jobs"`
	Clients  int      `json:"clients"`
	Findings []string `json:"findings"` // a kind for each
	Unseen   int      `json:"errors"`   // parts that the node could not read
	Failure  string   `json:"failure,omitempty"`
}

// Well reports whether the node has answered, has no finding, and could see everything.
func (a Answer) Well() bool { return a.Failure == "" && len(a.Findings) == 0 && a.Unseen == 0 }

// Unanswered is the answer of a node that could not be asked.
func Unanswered(node string, err error) Answer {
	return Answer{Node: node, Findings: []string{}, Failure: cut(site.OneLine(err), 160)}
}

// ReadAnswer reads the JSON of status or audit, which is the last line: a shell's profile may have printed others.
// Node and user decide what it has, so only counts and short printable words are taken.
func ReadAnswer(out []byte) (Answer, error) {
	out = bytes.TrimSpace(out)
	last := out[bytes.LastIndexByte(out, '\n')+1:]
	var is struct {
		Node *string
		Jobs []struct {
			GPUs []struct{ Clients []struct{ PID int } }
		}
		Counts   *struct{ Jobs, Clients int } // of an audit
		Findings []struct{ Kind string }
		Errors   []string
	}
	if err := json.Unmarshal(last, &is); err != nil || is.Node == nil {
		return Answer{}, errors.New("the answer is not mpsctl's: is slurm-mps installed there?")
	}
	answer := Answer{Jobs: len(is.Jobs), Unseen: len(is.Errors), Findings: []string{}}
	clients := map[int]bool{}
	for _, job := range is.Jobs {
		for _, gpu := range job.GPUs {
			for _, client := range gpu.Clients {
				clients[client.PID] = true
			}
		}
	}
	answer.Clients = len(clients)
	if is.Counts != nil {
		answer.Jobs, answer.Clients = is.Counts.Jobs, is.Counts.Clients
	}
	for _, f := range is.Findings {
		answer.Findings = append(answer.Findings, cut(site.OneLine(errors.New(f.Kind)), 40))
	}
	return answer, nil
}

func cut(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit]) + "…"
	}
	return text
}
