// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

// crowd decides what happens to control programs that connect at the same time. In a measurement with four loops of
// queries, 33 to 48 of 100 failed. Seven of eight of the failures came before the command was read ("Cannot send
// command …"). The others came after it, with an empty answer. Alone, no query failed.
//
// So a command that comes while a young command is being answered is rejected with a fixed chance. An old command
// waits for a server that does not answer. A new command that finds only old ones is accepted and waits too.
type crowd struct {
	mutex  sync.Mutex
	inside map[wire.Conn]time.Time // the control programs that wait for an answer, and since when
	chance *rand.Rand
}

const (
	rejected = 0.28                   // of those that come beside a young command; gives the measured rate with four loops
	unread   = 0.87                   // of those that are rejected
	young    = 100 * time.Millisecond // an older command waits for something
)

// enter reports whether a control program is accepted.
func (c *crowd) enter(conn wire.Conn) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.inside == nil {
		c.inside = map[wire.Conn]time.Time{}
		c.chance = rand.New(rand.NewPCG(uint64(os.Getpid()), 580))
	}
	for _, since := range c.inside {
		if time.Since(since) < young && c.chance.Float64() < rejected {
			return false
		}
	}
	c.inside[conn] = time.Now()
	return true
}

// reject prepares the end of a connection that is not accepted; the caller closes the connection after it. If the
// command was not read, the peer's call fails. If it was read, the peer gets an empty answer.
func (c *crowd) reject(conn wire.Conn) {
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

// leave is called before a control program gets the last packet of its answer. So a program that starts after this
// answer never meets this command.
func (c *crowd) leave(conn wire.Conn) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.inside, conn)
}
