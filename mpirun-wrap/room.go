// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

const (
	// roomPause is the time between two looks at the job's room.
	roomPause = 10 * time.Millisecond
	// tellRoom is the time after which a rank that waits for room prints why. Most waits are shorter.
	tellRoom = time.Second
)

// WaitRoom waits while dead clients take room on the rank's GPUs that the rank may need: memory, or one of the GPU's
// places. The job's guard publishes that, and says until when. read returns what it has published. WaitRoom calls
// waits once, after a second. It returns the time that it has waited. If the room is not known, it does not wait. The
// published time is a wall clock's, which may be set back while no guard lives that could publish another one. So no
// wait is longer than the maximum hold.
func (s Placement) WaitRoom(ctx context.Context, read func() (lease.Room, error), waits func(what string)) time.Duration {
	began := time.Now()
	for {
		room, err := read()
		gpu, full := s.fullGPU(room)
		waited := time.Since(began)
		if err != nil || !full || waited >= policy.MaxHold {
			return waited
		}
		if waits != nil && waited > tellRoom {
			waits(fmt.Sprintf("waiting for GPU %d: %s that ended may have work there (%v more at most)",
				gpu.Minor, site.Count(gpu.Dead, "rank"), min(time.Until(gpu.Until), policy.MaxHold-waited).Round(time.Second)))
			waits = nil
		}
		if !site.Sleep(ctx, roomPause) {
			return time.Since(began)
		}
	}
}

// fullGPU returns one of the rank's GPUs on which it must wait.
func (s Placement) fullGPU(room lease.Room) (lease.FullGPU, bool) {
	for _, gpu := range room.GPUs {
		if !time.Now().Before(gpu.Until) {
			continue
		}
		for _, own := range append([]GPUShare{s.GPUShare}, s.OtherGPUs...) {
			if own.Device.Minor == gpu.Minor {
				return gpu, true
			}
		}
	}
	return lease.FullGPU{}, false
}
