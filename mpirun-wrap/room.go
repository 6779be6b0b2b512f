// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"fmt"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"github.com/slurm-mps/slurm-mps/site/words"
)

const (
	// roomPause is the time between two looks at the job's room.
	roomPause = 10 * time.Millisecond
	// tellRoom is the time after which a rank that waits for room prints why. Most waits are shorter.
	tellRoom = time.Second
)

// waitRoom waits while dead clients take room on the rank's GPUs that the rank may need: memory, or one of the GPU's
// places. The job's guard publishes that, and says until when. read returns its publication. WaitRoom calls
// waits once, after a second. It returns the time that it has waited: the policy's hold at most, also if clients die
// again and again, or if the node's clock is set back. If the room is not known, it does not wait.
func (p *Placement) waitRoom(ctx context.Context, read func() (lease.Room, error), waits func(what string)) time.Duration {
	began := time.Now()
	for {
		room, err := read()
		gpu, full := p.fullGPU(room)
		waited := time.Since(began)
		left := p.Ticket.Grant.Hold - waited
		if err != nil || !full || left <= 0 {
			return waited
		}
		if waits != nil && waited > tellRoom {
			waits(fmt.Sprintf("waiting for GPU %d: %s that ended may have work there (%v more at most)",
				gpu.Minor, words.Count(gpu.Dead, "rank"), min(left, time.Until(gpu.Until)).Round(time.Second)))
			waits = nil
		}
		if !wait.Sleep(ctx, roomPause) {
			return time.Since(began)
		}
	}
}

// fullGPU returns one of the rank's GPUs on which it must wait.
func (p *Placement) fullGPU(room lease.Room) (lease.FullGPU, bool) {
	for _, gpu := range room.GPUs {
		if !time.Now().Before(gpu.Until) {
			continue
		}
		for _, part := range p.parts() {
			if part.Device.Minor == gpu.Minor {
				return gpu, true
			}
		}
	}
	return lease.FullGPU{}, false
}
