// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// MaxDurations is how long a prolog and an epilog may take until they end by themselves: Slurm is to wait longer.
func MaxDurations(facts site.Config) (prolog, epilog time.Duration) {
	return facts.PrologDeadline + prologMargin, facts.EpilogDeadline + epilogMargin
}
