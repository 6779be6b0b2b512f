// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
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

// server is the MPS server. Its mutex guards all that follows it.
type server struct {
	link        wire.Conn
	log         record.Log
	knobs       faults.Knobs
	descriptors uint64 // RLIMIT_NOFILE
	maxContexts int    // on a device
	devices     []*gpu
	memory      *os.File // the memory driver's file, for its locks
	control     *os.File // the control device's, for its locks

	mutex      sync.Mutex
	percentage float64
	priority   int
	pinned     map[string]string // by ordinal
	processes  map[int]*process
	order      []*process // as they came
	counted    int        // processes so far: the ID of `ps`
	latest     string     // the client before, for the log
	starved    bool       // too few descriptors: nobody's work goes on
	affected   int        // processes that a GPU's fault has hit and that are still there
	illegal    bool       // a client's files have gone in the wrong order: nobody can make a context
}

// gpu is a device that the server holds a context on.
type gpu struct {
	visible.Device
	ordinal   int
	contexts  []*context
	kept      int        // contexts of the dead whose files somebody holds
	dead      []*context // clients that have gone and whose work is on the GPU still
	advanced  uint64     // the time up to which that work has been reckoned
	spent     uint64     // what it has taken since the latest sample
	samples   samples
	leaving   map[*context]chan struct{} // open while it is not known what becomes of a client's work
	suspect   chan struct{}              // open while a killed client's work is being found out
	destroyed bool                       // the context is made again when the next client comes
}

// process is a client: a process with CUDA in it.
type process struct {
	pid, id  int
	conn     wire.Conn
	contexts sync.WaitGroup
	gone     chan struct{}
	failed   int // the sticky error that a fault has given it
}

// mark begins every answer, since a packet cannot be empty and an answer can.
const mark = "="

// serve answers the daemon, a question at a time, and returns the exit code. Without a daemon there is no server.
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

// shutdown is done where no client is connected.
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
		lines = append(lines, fmt.Sprintf("[%d] 00:00.0, %s", g.ordinal, g.Name)) // the real one prints no position either
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

// setPercentage ignores what is no percentage; what it sets holds for processes that come later.
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

// terminate ends a client's work whatever is in flight. Its library has to agree, so it takes for ever where the
// process is stopped. The answer is 0; 201 for a client that has been ended already and is still there; 1 for none,
// or one that dies meanwhile.
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
			case <-c.agreed: // it agreed and was gone before this looked
			default:
				return "1"
			}
		}
	}
	time.Sleep(5 * time.Millisecond) // measured: 11 ms in all for a client alone
	s.log.Line("Server", "Client termination succeeded.")
	return "0"
}

// now is the clock of the work pages: CLOCK_MONOTONIC, in nanoseconds.
func now() uint64 {
	var t syscall.Timespec
	clockGettime(&t)
	return uint64(t.Nano())
}
