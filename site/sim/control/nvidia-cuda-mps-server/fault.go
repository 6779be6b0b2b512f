// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// noticing is the time from a kill in the middle of a kernel to the server's report of a fatal error. 130 to 150 ms
// were measured.
const noticing = 130 * time.Millisecond

// dying is the time that a killed process may take on a busy machine from closing its socket to closing its other
// files. A process that still lives after that has only ended its context.
const dying = time.Second

const (
	illegalAddress = 700
	launchFailure  = 719
	illegalState   = 401
)

// leave checks for work that an ended context has left on the GPU. The caller holds the mutex.
func (s *server) leave(c *context, g *gpu) {
	t := now()
	deadly := c.process.failed == 0
	select {
	case <-c.agreed:
		if deadly && c.queued {
			s.suspect(g) // even if another process holds the client's files
		}
		clearing := s.knobs.Wait("terminate_clears_ms", 0)
		c.clears = t + uint64(clearing)
		deadly = deadly && clearing > 0
	default:
		if deadly && t < c.work.end() {
			g.advance(t)
			c.reached = t
			g.dead = append(g.dead, c)
		}
		deadly = deadly && c.work.outlasts(t)
	}
	if deadly {
		g.leaving[c] = make(chan struct{})
	}
	if !deadly && !slices.Contains(g.dead, c) {
		c.work.close()
		return
	}
	go s.watchWork(c, g, deadly)
}

// watchWork waits for the end of the work of a client that has gone. If the last descriptor of the client's memory
// files is closed while work is in flight, that harms the neighbours (measured on H200s). A dying process
// closes its files a moment after its socket. Until then the server serves no new context, as it does while it
// detects a death.
func (s *server) watchWork(c *context, g *gpu, deadly bool) {
	dead, done := false, false
	for began := time.Now(); !done && s.held(c.process.pid); time.Sleep(time.Millisecond) {
		if !dead && (gone(c.process.pid) || time.Since(began) > dying) {
			dead = true
			s.decided(g, c)
		}
		done = dead && !s.inFlight(c, g)
	}
	s.mutex.Lock()
	if !done && s.harms(c, g, dead, deadly) {
		s.suspect(g)
	}
	g.drop(c)
	s.mutex.Unlock()
	s.decided(g, c)
	c.work.close()
}

// inFlight reports whether any work of a client that has gone is on the GPU.
func (s *server) inFlight(c *context, g *gpu) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	t := now()
	g.advance(t)
	return slices.Contains(g.dead, c) || t < c.clears
}

// harms reports whether the files of a client are closed too early. If the files are closed by the process's own end,
// the work counts from the end of its connection. A process that ended its context and lived on may have finished its
// work. The caller holds the mutex.
func (s *server) harms(c *context, g *gpu, dead, deadly bool) bool {
	t := now()
	g.advance(t)
	if c.process.failed != 0 {
		return false
	}
	if t < c.clears {
		return true
	}
	if !slices.Contains(g.dead, c) {
		return false
	}
	return !dead && deadly || c.work.outlasts(c.reached)
}

// decided wakes those that wait for the result of a client's work.
func (s *server) decided(g *gpu, c *context) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if left, ok := g.leaving[c]; ok {
		delete(g.leaving, c)
		close(left)
	}
}

// gone reports whether a process has ended and so has closed its files.
func gone(pid int) bool {
	_, lives := node.Start(pid)
	return !lives
}

// held reports whether any process has both memory files of a client open. cuda.c locks a byte of each.
func (s *server) held(pid int) bool {
	return node.ByteLocked(s.memory, 2*int64(pid)) && node.ByteLocked(s.memory, 2*int64(pid)+1)
}

// watchOrder checks the order in which the files of an ended process are closed, in whichever process they are open.
// The memory driver's files must be closed first. If the control device's file is closed before them, no client can
// make a context any more (measured: one client in 150 does this; docs/decisions.md, 23).
func (s *server) watchOrder(pid int) {
	for began := time.Now(); node.ByteLocked(s.control, int64(pid)); time.Sleep(time.Millisecond) {
		if time.Since(began) > longestHeld && !gone(pid) {
			return
		}
	}
	if s.held(pid) {
		s.mutex.Lock()
		s.illegal = true
		s.mutex.Unlock()
	}
}

// longestHeld bounds the watch of a process that lives on without a server.
const longestHeld = 10 * time.Second

// suspect begins the time between a client's death with work in flight and the result. The caller holds the mutex.
func (s *server) suspect(g *gpu) {
	if g.suspect != nil {
		return
	}
	over := make(chan struct{})
	g.suspect = over
	time.AfterFunc(noticing, func() {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		if len(g.contexts) > 0 {
			s.fault(g)
		}
		g.suspect = nil
		close(over)
	})
}

// meetsFault reports whether a new context meets the fault that a killed client has left. This happens if the context
// comes before the fault is noticed, on a GPU with no other client. The call takes the time that was measured.
func (s *server) meetsFault(g *gpu) bool {
	s.mutex.Lock()
	leaving := maps.Clone(g.leaving)
	s.mutex.Unlock()
	for _, left := range leaving {
		<-left
	}
	s.mutex.Lock()
	over, alone := g.suspect, len(g.contexts) == 0
	s.mutex.Unlock()
	if over == nil {
		return false
	}
	<-over
	if alone {
		time.Sleep(refusing)
	}
	return alone
}

// fault is a fatal error on a GPU. Every process with a context on this GPU gets 700, and no other process does. If
// one of them also has a context on another GPU, that GPU is reset too, and a process that uses only that GPU gets
// 719. The caller holds the mutex.
func (s *server) fault(g *gpu) {
	there := s.holders(g, illegalAddress)
	for _, p := range there {
		for _, other := range s.devices {
			if other != g && other.has(p) {
				there = append(there, s.holders(other, launchFailure)...)
			}
		}
	}
	if len(there) == 0 {
		return
	}
	s.affected += len(there)
	s.describe(g, there)
	for _, p := range there {
		p.conn.Send(fmt.Sprintf("fault %d", p.failed))
	}
}

// holders marks the processes with a context on a GPU as failed. It returns those that were not failed before.
func (s *server) holders(g *gpu, code int) []*process {
	g.destroyed, g.dead = true, nil
	var fresh []*process
	for _, c := range g.contexts {
		if c.process.failed == 0 {
			c.process.failed = code
			fresh = append(fresh, c.process)
		}
	}
	return fresh
}

func (g *gpu) has(p *process) bool {
	for _, c := range g.contexts {
		if c.process == p {
			return true
		}
	}
	return false
}

// describe writes the same lines into the log as the real server.
func (s *server) describe(g *gpu, there []*process) {
	logf := func(format string, values ...any) { s.log.Line("Server", format, values...) }
	logf("Client {PID: %d, Context: 1} encountered a fatal GPU error.", there[0].pid)
	logf("Server is handling a fatal GPU error.")
	for _, each := range s.devices {
		for _, c := range each.contexts {
			if each.destroyed {
				logf("Client %s on device %d to be torn down", c, each.ordinal)
			}
		}
	}
	for _, p := range there {
		logf("All clients belonging to error trigging process %d will be torn down", p.pid)
		for _, each := range s.devices {
			for _, c := range each.contexts {
				if c.process == p {
					logf("Client %s on the error-trigging process %d to be torn down", c, p.pid)
				}
			}
		}
	}
	logf("The following devices will be reset:")
	for _, each := range s.devices {
		if each.destroyed {
			logf("%s", strconv.Itoa(each.ordinal))
		}
	}
	logf("The following client process have a sticky error set:")
	for _, p := range there {
		logf("%d", p.pid)
	}
}

// restoreContexts makes the contexts that a fault has destroyed again. The caller holds the mutex.
func (s *server) restoreContexts() {
	for _, g := range s.devices {
		if g.destroyed {
			s.log.Line("Server", "Creating server context on device %d (%s)", g.ordinal, g.Name)
			time.Sleep(creating)
			g.destroyed, s.illegal = false, false
		}
	}
}
