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
	full := map[int]lease.FullGPU{}
	add := func(c *client, until time.Time) {
		for i, minor := range g.Minors {
			if !c.mayUse(1 << i) {
				continue
			}
			gpu := full[minor]
			gpu.Minor, gpu.Dead = minor, gpu.Dead+1
			if until.After(gpu.Until) {
				gpu.Until = until
			}
			full[minor] = gpu
		}
	}
	for _, c := range g.dead {
		if c.keepsOut {
			add(c, c.died.Add(g.Hold))
		}
	}
	for c, closed := range g.closing {
		if closed.IsZero() && !c.wasRoomy {
			add(c, c.died.Add(g.Hold))
		}
	}
	var room lease.Room
	for _, minor := range g.Minors {
		if gpu, ok := full[minor]; ok {
			room.GPUs = append(room.GPUs, gpu)
		}
	}
	g.rooms.publish(room)
}
