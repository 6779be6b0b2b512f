// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// While mpsctl reap closes a job, the job's epilog waits for it and does not take it for a prolog, which it would kill.
func TestAnEpilogWaitsForACleanup(t *testing.T) {
	c, err := OpenCleanup(site.Paths{Root: t.TempDir()})
	must.OK(t, err)
	defer c.Close()
	release := must.Get(c.Lock(t.Context(), 7))(t)
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = c.n.store.Lock(ctx, 7)
	var busy *lease.BusyError
	must.Hold(t, errors.As(err, &busy) && busy.Closing, "the holder is not known to close the job: %v", err)
}
