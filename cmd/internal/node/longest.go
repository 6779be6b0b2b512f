// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// Longest is how long a prolog and an epilog may take until they end by themselves: Slurm is to wait longer.
func Longest(facts site.Facts) (prolog, epilog time.Duration) {
	return facts.PrologDeadline + prologMargin, facts.EpilogDeadline + epilogMargin
}
