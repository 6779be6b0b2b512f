// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// HarmTime is the time in which the end of a client can end its neighbours. The measured time is 0.13 to 0.19 s (on an
// H200).
const HarmTime = 500 * time.Millisecond

// Event is a report of a job's guard to the job's recorder, as a line of JSON. Each event has the guard's counts,
// so a lost event loses none. An event without a process has only these.
type Event struct {
	Proc  proc.Process `json:"proc,omitzero"`
	GPUs  uint64       `json:"gpus"` // bit n: the client has the job's n-th GPU open; 0 if no GPU is known
	Begin time.Time    `json:"begin,omitzero"`
	End   time.Time    `json:"end,omitzero"`
	Exit  string       `json:"exit,omitempty"` // as in Client
	// Ending and Unharmed are as in Client. They are known later than End.
	Ending   Ending `json:"ending,omitempty"`
	Unharmed int    `json:"unharmed,omitempty"`
	NoClient bool   `json:"no_client,omitempty"` // the process was counted as a client of the job and is not a client
	lease.Counts
}
