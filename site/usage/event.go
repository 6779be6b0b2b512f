// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// Event is what the guard of a job tells the job's recorder about a client: a line of JSON.
type Event struct {
	Proc  site.Process `json:"proc"`
	GPUs  uint64       `json:"gpus"` // bit n: it has the job's n-th GPU open; 0 while none is known
	Begin time.Time    `json:"begin"`
	End   time.Time    `json:"end,omitzero"`
	// Ending and Unharmed are as in Client. They are known later than End.
	Ending   Ending `json:"ending,omitempty"`
	Unharmed int    `json:"unharmed,omitempty"`
	NoClient bool   `json:"no_client,omitempty"` // it was taken for a client of the job and is none
}
