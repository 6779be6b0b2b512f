// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

// The work of dead clients shares the GPU: each client gets the same part of the time. So all of it is done when the
// sum of what each client had left has passed (measured: six clients with 0.75 s each took 4.4 s). In this simulation
// living clients do not slow it down.

// advance computes the progress of the dead clients' work up to the time t, and drops the clients whose work is done.
// The caller holds the mutex.
func (g *gpu) advance(t uint64) {
	for g.advanced < t && len(g.dead) > 0 {
		count := uint64(len(g.dead))
		each := (t - g.advanced) / count
		for _, c := range g.dead {
			each = min(each, c.work.end()-c.reached)
		}
		if each == 0 { // less than a nanosecond for each
			break
		}
		for _, c := range g.dead {
			c.reached += each
		}
		g.advanced += each * count
		g.spent += each * count
		g.dead = slices.DeleteFunc(g.dead, func(c *context) bool { return c.reached >= c.work.end() })
	}
	g.advanced = max(g.advanced, t)
}

// drop forgets a dead client's work. The caller holds the mutex.
func (g *gpu) drop(c *context) {
	g.dead = slices.DeleteFunc(g.dead, func(other *context) bool { return other == c })
}
