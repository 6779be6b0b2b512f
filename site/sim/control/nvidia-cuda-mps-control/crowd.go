// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

// crowd is what happens to control programs that come at once. Measured with four loops of queries: 33 to 48 of 100
// failed, seven of eight of them before the command was read ("Cannot send command …"), the others after it (an empty
// answer); alone, none. So a command that comes while another is young is turned away with a fixed chance. Behind an
// old one, which waits for a server that does not answer, it waits as well.
type crowd struct {
	mutex  sync.Mutex
	inside map[wire.Conn]time.Time // who waits for an answer, and since when
	chance *rand.Rand
}

const (
	turnedAway = 0.28                   // of those that meet another; gives the measured rate with four loops
	unread     = 0.87                   // of those turned away
	young      = 100 * time.Millisecond // a command that is older than this waits for something
)

// enter reports whether a control program is let in.
func (c *crowd) enter(conn wire.Conn) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.inside == nil {
		c.inside = map[wire.Conn]time.Time{}
		c.chance = rand.New(rand.NewPCG(uint64(os.Getpid()), 580))
	}
	for _, since := range c.inside {
		if time.Since(since) < young && c.chance.Float64() < turnedAway {
			return false
		}
	}
	c.inside[conn] = time.Now()
	return true
}

// turnAway is for one that is not let in, before its connection is closed. What was not read makes the peer's call
// fail; what was read leaves it with an empty answer.
func (c *crowd) turnAway(conn wire.Conn) {
	c.mutex.Lock()
	read := c.chance.Float64() >= unread
	c.mutex.Unlock()
	if !read {
		return
	}
	conn.Receive() // the greeting
	if _, err := conn.Peek(time.Now().Add(young)); err == nil {
		conn.Receive() // the command
	}
}

// leave is called before a control program has the last word of its answer, so that one that is called after another
// never meets it.
func (c *crowd) leave(conn wire.Conn) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.inside, conn)
}
