// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

const (
	// outOfMemory is the error of a client if dead clients whose files are held have used up the places.
	outOfMemory = 2
	// A server needs about ownDescriptors descriptors, and contextDescriptors more for each context. With a limit of
	// 1024 none of 48 clients finished, and with 20000 all did. The manual asks for 16384.
	ownDescriptors     = 40
	contextDescriptors = 80
	// refusing is the time that a client waits for its error 46 if it comes right after a kill in the middle of a
	// kernel.
	refusing = 250 * time.Millisecond
)

// context is a client's context on a device.
type context struct {
	process *process
	number  int
	conn    wire.Conn
	work    *work
	agreed  chan struct{} // closed when the client has agreed to terminate_client and given up its work
	queued  bool          // at that moment more was in flight than terminate_client ends without harm
	clears  uint64        // the time when that work is off the GPU, by the clock of the work page
	reached uint64        // the progress of a dead client's work, by the same clock (backlog.go)
	ended   chan struct{} // closed when the context is gone
	dropped bool          // the process has ended the context and lives on
}

func (c *context) String() string { return label(c.process.pid, c.number) }

func label(pid, number int) string { return fmt.Sprintf("{PID: %d, Context ID: %d}", pid, number) }

var errPacket = errors.New("unexpected packet")

// welcome takes a connection from the daemon: "PID CONTEXT". Context 0 is the process itself.
func (s *server) welcome(text string, files []int) {
	if len(files) != 1 {
		return
	}
	conn, err := wire.Adopt(files[0])
	if err != nil {
		return
	}
	first, second, _ := strings.Cut(text, " ")
	pid, err1 := strconv.Atoi(first)
	number, err2 := strconv.Atoi(second)
	if err := errors.Join(err1, err2); err != nil {
		conn.Close()
		return
	}
	s.mutex.Lock()
	s.log.Line("Server", "Received new client request for %s", s.latestOr(pid, number))
	s.latest = label(pid, number)
	s.mutex.Unlock()
	if number == 0 {
		go s.process(pid, conn)
		return
	}
	go s.context(pid, number, conn)
}

// latestOr returns the label of the client before this one, because the real log names that client here.
func (s *server) latestOr(pid, number int) string {
	if s.latest == "" {
		return label(pid, number)
	}
	return s.latest
}

// process serves a process from its first CUDA call to its end.
func (s *server) process(pid int, conn wire.Conn) {
	defer conn.Close()
	s.mutex.Lock()
	if s.affected > 0 {
		s.refuse(label(pid, 0))
		s.mutex.Unlock()
		conn.Send("err 807")
		return
	}
	s.restoreContexts()
	s.counted++
	p := &process{pid: pid, id: s.counted, conn: conn, gone: make(chan struct{})}
	s.processes[pid] = p
	s.order = append(s.order, p)
	greeting := s.greeting(pid)
	s.log.Line("Server", "Client %s connected", label(pid, 0))
	s.log.Line("Server", "Creating worker thread for client %s", label(pid, 0))
	s.mutex.Unlock()
	own := withPipes(conn, greeting)
	defer own.close()
	var host []int
	for {
		text, files, err := conn.Receive()
		if err != nil {
			break
		}
		if line, ok := strings.CutPrefix(text, "log "); ok {
			s.log.As(pid, "Client", "%s", line)
		}
		if text == "host" {
			host = append(host, files...)
		}
	}
	p.contexts.Wait()
	s.forget(p)
	s.keepHost(pid, host)
}

// refuse logs a client that comes while the server waits for the clients that a fault has hit.
func (s *server) refuse(client string) {
	s.log.Line("Server", "Server teardown in progress. Refusing to accept new client %s", client)
	s.log.Line("Server", "Failed to accept client %s with status 807", client)
}

// greeting returns what a process is told first: "ok PERCENTAGE PRIORITY PID", then a line for each device.
func (s *server) greeting(pid int) string {
	lines := []string{fmt.Sprintf("ok %s %d %d", strconv.FormatFloat(s.percentage, 'g', -1, 64), s.priority, pid)}
	for _, g := range s.devices {
		limit := s.pinned[strconv.Itoa(g.ordinal)]
		if limit == "" {
			limit = "-"
		}
		lines = append(lines, fmt.Sprintf("%d %d %d %d %d %s %s %s", g.GPU.Index, g.Instance, g.SMs, g.TPC, g.MemoryMiB,
			limit, g.UUID, g.Name))
	}
	return strings.Join(lines, "\n")
}

func (s *server) forget(p *process) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.log.Line("Server", "Server failed to recevie command with status 806, assuming client %s exit", label(p.pid, 0))
	s.log.Line("Server", "Client process %d disconnected", p.pid)
	if s.processes[p.pid] == p {
		delete(s.processes, p.pid)
	}
	for i, other := range s.order {
		if other == p {
			s.order = append(s.order[:i:i], s.order[i+1:]...)
			break
		}
	}
	if p.failed != 0 {
		s.affected--
	}
	close(p.gone)
	go s.watchOrder(p.pid)
}

// context serves one context from its creation to its end.
func (s *server) context(pid, number int, conn wire.Conn) {
	defer conn.Close()
	c, g, code := s.open(pid, number, conn)
	if code != 0 {
		conn.Send(fmt.Sprintf("err %d", code))
		return
	}
	defer c.process.contexts.Done()
	own := withPipes(conn, s.opened())
	defer own.close()
	s.checkDescriptors(c)
	for {
		text, _, err := conn.Receive()
		if err != nil {
			break
		}
		switch text {
		case "terminated":
			c.queued = c.work.queued(now())
			close(c.agreed)
		case "drop":
			c.dropped = true
		case "fault":
			s.mutex.Lock()
			s.fault(g)
			s.mutex.Unlock()
		}
	}
	s.end(c, g)
}

// open makes a context, or returns the error with which it is refused.
func (s *server) open(pid, number int, conn wire.Conn) (*context, *gpu, int) {
	text, files, err := conn.Receive()
	if err != nil {
		return nil, nil, 806
	}
	g := s.device(strings.TrimPrefix(text, "open "))
	page, err := mapWork(files)
	if err != nil || g == nil {
		return nil, nil, 101
	}
	if s.meetsFault(g) {
		page.close()
		return nil, nil, 46
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	p := s.processes[pid]
	if p == nil || p.failed != 0 {
		s.refuse(label(pid, number))
		page.close()
		return nil, nil, 807
	}
	c := &context{process: p, number: number, conn: conn, work: page, agreed: make(chan struct{}), ended: make(chan struct{})}
	s.log.Line("Server", "Client %s connected", c)
	s.log.Line("Server", "Creating worker thread for client %s", c)
	s.log.Line("Server", "Device %s (uuid %s) is associated", g.Name, g.UUID)
	if len(g.contexts) >= g.maxContexts {
		s.log.Line("Server", "Failed to accept new client. Maximum number of clients (%d) reached.", g.maxContexts)
		s.log.Line("Server", "Client process %d disconnected", pid)
		page.close()
		return nil, nil, 46
	}
	if len(g.contexts)+g.kept >= g.maxContexts {
		page.close()
		return nil, nil, outOfMemory
	}
	s.log.Line("Server", "Status of client %s is ACTIVE", c)
	g.contexts = append(g.contexts, c)
	g.take(pid)
	p.contexts.Add(1)
	return c, g, 0
}

// opened returns the answer to a client whose context has been made. It is an error if the context cannot be used.
func (s *server) opened() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.illegal {
		return fmt.Sprintf("err %d", illegalState)
	}
	return "ok"
}

func (s *server) device(uuid string) *gpu {
	for _, g := range s.devices {
		if g.UUID == uuid {
			return g
		}
	}
	return nil
}

// checkDescriptors stalls all clients when the descriptors are used up: their work never ends.
func (s *server) checkDescriptors(c *context) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	needed := uint64(ownDescriptors)
	for _, g := range s.devices {
		needed += uint64(contextDescriptors * len(g.contexts))
	}
	if s.stalled {
		c.conn.Send("stall")
		return
	}
	if needed <= s.descriptors {
		return
	}
	s.stalled = true
	s.log.Line("Server", "Failed to open a file for client %s: too many open files", c)
	for _, g := range s.devices {
		for _, other := range g.contexts {
			other.conn.Send("stall")
		}
	}
}

// end notes that a context is gone, and checks for work that it has left on the GPU.
func (s *server) end(c *context, g *gpu) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	left := 0
	for i, other := range g.contexts {
		if other == c {
			g.contexts = append(g.contexts[:i:i], g.contexts[i+1:]...)
			break
		}
	}
	for _, each := range s.devices {
		left += len(each.contexts)
	}
	if left == 0 {
		s.stalled = false
	}
	s.log.Line("Server", "Server failed to recevie command with status 806, assuming client %s exit", c)
	s.log.Line("Server", "Client %s exiting. Number of active client contexts is %d.", c, left)
	close(c.ended)
	if c.dropped {
		g.leave(c.process.pid)
	} else {
		g.kept++
		go s.keep(c.process.pid, g)
	}
	s.leave(c, g)
	if g.destroyed && len(g.contexts) == 0 {
		s.log.Line("Server", "Destroy server context on device %d (%s)", g.ordinal, g.Name)
	}
}
