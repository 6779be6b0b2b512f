// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/control/faults"
	"github.com/slurm-mps/slurm-mps/site/sim/control/record"
	"github.com/slurm-mps/slurm-mps/site/sim/control/visible"
	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

// server is the MPS server. Its mutex guards all fields below the mutex.
type server struct {
	link        wire.Conn
	log         record.Log
	knobs       faults.Knobs
	descriptors uint64 // RLIMIT_NOFILE
	maxContexts int    // on a whole GPU
	devices     []*gpu
	memory      *os.File // the memory driver's file, to check its locks
	control     *os.File // the control device's file, to check its locks

	mutex      sync.Mutex
	percentage float64
	priority   int
	pinned     map[string]string // by ordinal
	processes  map[int]*process
	order      []*process // in the order in which they came
	counted    int        // processes so far; a process's number is the ID in `ps`
	latest     string     // the client before this one, for the log
	stalled    bool       // too few descriptors: no client's work continues
	affected   int        // processes that a fault has hit and that still exist
	illegal    bool       // a client's files were closed in the wrong order: no client can make a context
}

// gpu is a device that the server holds a context on.
type gpu struct {
	visible.Device
	ordinal     int
	contexts    []*context
	maxContexts int
	file        *os.File    // of the GPU in dev/, to check and to set its locks
	kept        int         // contexts of dead clients that still take a place
	taken       map[int]int // contexts of each process, by pid, also of dead ones
	dead        []*context  // ended clients that still have work on the GPU
	advanced    uint64      // the time up to which the progress of that work is computed
	spent       uint64      // the GPU time that this work has used since the latest sample
	samples     samples
	leaving     map[*context]chan struct{} // each is open until the result of an ended client's work is known
	suspect     chan struct{}              // open until the result of a killed client's work is known
	destroyed   bool                       // the context is made again when the next client comes
}

// process is a client: a process that uses CUDA.
type process struct {
	pid, id  int
	conn     wire.Conn
	contexts sync.WaitGroup
	gone     chan struct{}
	failed   int // the error that a fault has given it; every later call gives this error
}

// mark begins every answer, because a packet cannot be empty and an answer can.
const mark = "="

// serve answers the daemon's questions one by one and returns the exit code. When the daemon is gone, the server
// ends.
func (s *server) serve() int {
	for {
		text, files, err := s.link.Receive()
		if err != nil {
			return 1
		}
		word, rest, _ := strings.Cut(text, " ")
		if word == "client" {
			s.welcome(rest, files)
			continue
		}
		answer, over := s.answer(word, rest)
		if over {
			s.log.Line("Server", "Exiting")
			s.link.Send(mark + answer)
			time.Sleep(leaving)
			return 0
		}
		if err := s.link.Send(mark + answer); err != nil {
			return 1
		}
	}
}

func (s *server) answer(word, rest string) (answer string, over bool) {
	switch word {
	case "status":
		return s.status(), false
	case "clients":
		return s.clientList(), false
	case "device":
		return s.deviceClients(), false
	case "processes":
		return s.table(), false
	case "percentage":
		return s.setPercentage(rest), false
	case "pinned":
		return s.setPinned(rest), false
	case "terminate":
		return s.terminate(rest), false
	case "shutdown":
		return s.shutdown()
	case "force":
		s.log.Line("Server", "Server has been forced to shutdown")
		return "forced", true
	}
	return "", false
}

// shutdown ends the server if no client is connected.
func (s *server) shutdown() (answer string, over bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.log.Line("Server", "Server has been notified to shutdown")
	workers := len(s.order)
	for _, g := range s.devices {
		workers += len(g.contexts)
	}
	if workers > 0 {
		s.log.Line("Server", "Server was unable to shutdown due to %d active clients", workers)
		return fmt.Sprintf("busy %d", workers), false
	}
	s.log.Line("Server", "Waiting for current clients to finish")
	return "idle", true
}

func (s *server) status() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.affected > 0 {
		return "FAULT"
	}
	return "ACTIVE"
}

func (s *server) clientList() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var lines []string
	for _, p := range s.order {
		if s.holds(p) {
			lines = append(lines, strconv.Itoa(p.pid))
		}
	}
	return strings.Join(lines, "\n")
}

// holds reports whether a process has a context. The caller holds the mutex.
func (s *server) holds(p *process) bool {
	for _, g := range s.devices {
		for _, c := range g.contexts {
			if c.process == p {
				return true
			}
		}
	}
	return false
}

func (s *server) deviceClients() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var lines []string
	for _, g := range s.devices {
		if len(g.contexts) == 0 {
			continue
		}
		lines = append(lines, fmt.Sprintf("[%d] 00:00.0, %s", g.ordinal, g.Name)) // the real server prints no position either
		for _, c := range g.contexts {
			lines = append(lines, fmt.Sprintf("%d.%d", c.process.pid, c.number))
		}
	}
	return strings.Join(lines, "\n")
}

func (s *server) table() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	const row = "%-10s%-10s%-15s%-26s%-15s%-15s"
	lines := []string{fmt.Sprintf(row, "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")}
	for _, p := range s.order {
		for _, g := range s.devices {
			for _, c := range g.contexts {
				if c.process == p {
					lines = append(lines, fmt.Sprintf(row, strconv.Itoa(p.pid), strconv.Itoa(p.id), strconv.Itoa(os.Getpid()),
						fmt.Sprintf("%.22s", g.UUID), namespace(p.pid), program(p.pid)))
				}
			}
		}
	}
	if len(lines) == 1 {
		return ""
	}
	return strings.Join(lines, "\n")
}

func namespace(pid int) string {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return "0"
	}
	return strings.Trim(link, "pid:[]")
}

func program(pid int) string {
	words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "?"
	}
	name, _, _ := strings.Cut(string(words), "\x00")
	return name
}

// setPercentage ignores a text that is no percentage. A new percentage applies to processes that come later.
func (s *server) setPercentage(text string) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if value, err := strconv.ParseFloat(text, 64); err == nil && value > 0 && value <= 100 {
		s.percentage = value
	}
	return s.shownPercentage()
}

func (s *server) shownPercentage() string { return strconv.FormatFloat(s.percentage, 'f', 1, 64) }

// setPinned sets the limit of a device ("0 2G") or asks for it ("0").
func (s *server) setPinned(text string) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	device, value, set := strings.Cut(text, " ")
	if set && value != "" {
		s.pinned[device] = value
	}
	if limit, ok := s.pinned[device]; ok {
		return limit
	}
	return "none"
}

// terminate ends a client's work, whatever is in flight. The client's library has to agree, so terminate waits for
// ever if the process is stopped. The answer is 0 after success. It is 201 for a client that was already terminated
// and still exists. It is 1 if there is no such client, or if the client dies during the call.
func (s *server) terminate(text string) string {
	pid, _ := strconv.Atoi(text)
	s.mutex.Lock()
	var ending []*context
	for _, g := range s.devices {
		for _, c := range g.contexts {
			if c.process.pid == pid {
				ending = append(ending, c)
			}
		}
	}
	ended := s.processes[pid] != nil
	s.mutex.Unlock()
	if len(ending) == 0 && ended {
		return "201"
	}
	if len(ending) == 0 {
		return fmt.Sprintf("Invalid process %d!\n1", pid)
	}
	for _, c := range ending {
		s.log.Line("Server", "MPS server requesting client %s to exit", c)
		c.conn.Send("terminate")
		select {
		case <-c.agreed:
		case <-c.ended:
			select {
			case <-c.agreed: // the client agreed and ended before this check
			default:
				return "1"
			}
		}
	}
	time.Sleep(5 * time.Millisecond) // 11 ms were measured in all, for a client alone
	s.log.Line("Server", "Client termination succeeded.")
	return "0"
}

// now returns the time of the clock of the work pages: CLOCK_MONOTONIC, in nanoseconds.
func now() uint64 {
	var t syscall.Timespec
	clockGettime(&t)
	return uint64(t.Nano())
}

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
