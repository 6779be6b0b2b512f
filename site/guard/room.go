// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
)

// rooms publishes the room of the job's GPUs. Programs that start through slurm-mps wait until the GPU has room.
type rooms struct {
	saver[lease.Room]
	last lease.Room
}

// publish saves a room if it differs from the last one.
func (r *rooms) publish(room lease.Room) {
	if !slices.Equal(room.GPUs, r.last.GPUs) {
		r.last = room
		r.put(room)
	}
}

// end publishes that all GPUs have room, because the files are closed.
func (r *rooms) end() {
	r.publish(lease.Room{})
	r.saver.end()
}

// publishRoom publishes the GPUs on which new clients must wait: a dead client's files are held and its room is
// needed, or not known to be plentiful, or its files are being closed.
func (g *Guard) publishRoom() {
	full := make([]lease.FullGPU, len(g.Minors))
	add := func(c *client) {
		for i, minor := range g.Minors {
			if gpu := &full[i]; c.mayUse(1 << i) {
				gpu.Minor, gpu.Dead, gpu.Until = minor, gpu.Dead+1, latest(gpu.Until, c.died.Add(time.Duration(g.Hold)))
			}
		}
	}
	for _, c := range g.dead {
		if c.keepsOut {
			add(c)
		}
	}
	for c, closed := range g.closing {
		if closed.IsZero() && !c.wasRoomy {
			add(c)
		}
	}
	g.rooms.publish(lease.Room{GPUs: slices.DeleteFunc(full, func(gpu lease.FullGPU) bool { return gpu.Dead == 0 })})
}
