// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// Event is what the guard of a job reports to the job's recorder, as a line of JSON: something about a client, or the
// pauses until now.
type Event struct {
	Proc  site.Process `json:"proc"`
	GPUs  uint64       `json:"gpus"` // bit n: the client has the job's n-th GPU open; 0 if no GPU is known
	Begin time.Time    `json:"begin"`
	End   time.Time    `json:"end,omitzero"`
	Exit  string       `json:"exit,omitempty"` // as in Client
	// Ending and Unharmed are as in Client. They are known later than End.
	Ending   Ending `json:"ending,omitempty"`
	Unharmed int    `json:"unharmed,omitempty"`
	NoClient bool   `json:"no_client,omitempty"` // the process was counted as a client of the job and is not a client

	// Pauses and PausedMillis are as in Totals. An event with Pauses is about no client.
	Pauses       int   `json:"pauses,omitempty"`
	PausedMillis int64 `json:"paused_ms,omitempty"`
}
