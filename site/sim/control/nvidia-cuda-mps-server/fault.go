// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// noticing is from a kill in mid-kernel to the server's word of a fatal error: 130 to 150 ms measured.
const noticing = 130 * time.Millisecond

// dying is what a killed process may take on a busy machine from closing its socket to closing its other files. One
// that lives on has ended its context only.
const dying = time.Second

const (
	illegalAddress = 700
	launchFailure  = 719
	illegalState   = 401
)

// leave looks for work that a context which is gone has left on the GPU. The caller holds the mutex.
func (s *server) leave(c *context, g *gpu) {
	t := now()
	deadly := c.process.failed == 0
	select {
	case <-c.agreed:
		if deadly && c.queued {
			s.suspect(g) // whoever holds the client's files
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
	go s.leavings(c, g, deadly)
}

// leavings finds out what becomes of the work of a client that has gone: it is done, or it is in flight still when
// the last descriptor of the client's memory files goes, which does the harm (measured: docs/decisions/011). The
// files of a process that dies go a moment after its socket; until then nobody else is served, as while a death is
// being noticed.
func (s *server) leavings(c *context, g *gpu, deadly bool) {
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

// harms reports whether the files of a client go too early. Those that go with the process itself count from the end
// of its connection; one that ended its context and lived on may have come to the end of its work. The caller holds
// the mutex.
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

// decided lets those go on who wait for what becomes of a client's work.
func (s *server) decided(g *gpu, c *context) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if left, ok := g.leaving[c]; ok {
		delete(g.leaving, c)
		close(left)
	}
}

// gone reports whether a process has closed its files.
func gone(pid int) bool {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, found := strings.Cut(string(content), ") ")
	return err != nil || found && (rest[0] == 'Z' || rest[0] == 'X')
}

// held reports whether anybody has both memory files of a process open: cuda.c locks a byte of each.
func (s *server) held(pid int) bool {
	return node.ByteLocked(s.memory, 2*int64(pid)) && node.ByteLocked(s.memory, 2*int64(pid)+1)
}

// watchOrder finds out in which order the files of a process that has gone are closed: the memory driver's come
// first, whoever has them. Where the control device's came before them nobody could make a context any more
// (measured: one client in 150 does it; docs/decisions/022).
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

// longestHeld is for a process that lives on without a server: it is watched no longer.
const longestHeld = 10 * time.Second

// suspect begins the time between a client's death with work in flight and what comes of it. The caller holds the
// mutex.
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

// doomed reports whether a new context runs into the fault that a killed client has left behind: one that comes
// before the fault has been noticed, on a GPU where nobody else would notice it. It takes as long as was measured.
func (s *server) doomed(g *gpu) bool {
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

// fault is a fatal error on a GPU: every process with a context there gets 700, and so does nobody else, unless one
// of them has a context on another GPU as well: then that GPU is reset too, and who is there alone gets 719. The
// caller holds the mutex.
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

// holders marks the processes with a context on a GPU as failed and returns those that were not so before.
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

// describe writes into the log what the real server writes.
func (s *server) describe(g *gpu, there []*process) {
	say := func(format string, values ...any) { s.log.Line("Server", format, values...) }
	say("Client {PID: %d, Context: 1} encountered a fatal GPU error.", there[0].pid)
	say("Server is handling a fatal GPU error.")
	for _, each := range s.devices {
		for _, c := range each.contexts {
			if each.destroyed {
				say("Client %s on device %d to be torn down", c, each.ordinal)
			}
		}
	}
	for _, p := range there {
		say("All clients belonging to error trigging process %d will be torn down", p.pid)
		for _, each := range s.devices {
			for _, c := range each.contexts {
				if c.process == p {
					say("Client %s on the error-trigging process %d to be torn down", c, p.pid)
				}
			}
		}
	}
	say("The following devices will be reset:")
	for _, each := range s.devices {
		if each.destroyed {
			say("%s", strconv.Itoa(each.ordinal))
		}
	}
	say("The following client process have a sticky error set:")
	for _, p := range there {
		say("%d", p.pid)
	}
}

// restoreContexts makes the contexts again that a fault has destroyed. The caller holds the mutex.
func (s *server) restoreContexts() {
	for _, g := range s.devices {
		if g.destroyed {
			s.log.Line("Server", "Creating server context on device %d (%s)", g.ordinal, g.Name)
			time.Sleep(creating)
			g.destroyed, s.illegal = false, false
		}
	}
}
