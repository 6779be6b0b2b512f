// SPDX-License-Identifier: Apache-2.0

// Command nvidia-cuda-mps-server is the MPS server of a simulated node. The control daemon starts it with a socket as
// descriptor 3 and the log as descriptor 4. The server holds the contexts on the GPUs. The processes that use the
// CUDA library are its clients.
//
// When a client ends, its neighbours live or die as they did in the measurements (README.md in the folder above).
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/control/dispositions"
	"github.com/slurm-mps/slurm-mps/site/sim/control/faults"
	"github.com/slurm-mps/slurm-mps/site/sim/control/nofile"
	"github.com/slurm-mps/slurm-mps/site/sim/control/record"
	"github.com/slurm-mps/slurm-mps/site/sim/control/visible"
	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

const (
	linkDescriptor = 3
	logDescriptor  = 4
	// initializing is the time from the start to the creation of the contexts. Together with creating it is 138 ms.
	// That time was measured from the start to the ready message to the daemon.
	initializing = 95 * time.Millisecond
	// creating is the time that the contexts take.
	creating = 43 * time.Millisecond
	// leaving is the time from the order to end until the end. 50 to 70 ms were measured.
	leaving = 55 * time.Millisecond
	// serverMemory is the memory in MiB that a server holds on each GPU, as nvidia-smi prints it.
	serverMemory = 66
)

func main() {
	dispositions.Restore(func(os.Signal) bool { return false })
	os.Exit(run())
}

func run() int {
	link, err := wire.Adopt(linkDescriptor)
	if err != nil {
		fmt.Fprintln(os.Stderr, "nvidia-cuda-mps-server is started by nvidia-cuda-mps-control")
		return 1
	}
	log := record.Log{To: os.NewFile(logDescriptor, "log"), PID: os.Getpid()}
	s, err := newServer(link, log)
	if err != nil {
		log.Line("Other", "%v", err)
		return 1
	}
	defer s.dropContexts()
	s.handleSignals()
	if err := s.start(); err != nil {
		log.Line("Server", "%v", err)
		return 1
	}
	return s.serve()
}

func newServer(link wire.Conn, log record.Log) (*server, error) {
	soft, err := nofile.Restore()
	if err != nil {
		return nil, err
	}
	here, err := node.Here()
	if err != nil {
		return nil, err
	}
	list, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	devices, err := visible.Devices(here, list, ok)
	if err != nil {
		return nil, err
	}
	driver, err := here.Text("driver_version")
	if err != nil {
		return nil, err
	}
	s := &server{
		link: link, log: log, knobs: faults.Of(here), descriptors: soft,
		processes: map[int]*process{}, pinned: map[string]string{}, percentage: 100,
		maxContexts: 48, // measured
	}
	if driver >= "590" { // NVIDIA's guide, not measured
		s.maxContexts = 60
	}
	if s.memory, err = os.Open(filepath.Join(here.Dir, "dev", "nvidia-uvm")); err != nil {
		return nil, err
	}
	if s.control, err = os.Open(filepath.Join(here.Dir, "dev", "nvidiactl")); err != nil {
		return nil, err
	}
	for i, device := range devices {
		g := &gpu{Device: device, ordinal: i, leaving: map[*context]chan struct{}{}, taken: map[int]int{}}
		if err := errors.Join(g.openFile(here), g.setClients(s.maxContexts)); err != nil {
			return nil, err
		}
		s.devices = append(s.devices, g)
	}
	return s, nil
}

// setClients sets how many contexts the device serves. NVIDIA's MIG guide, not measured: "the maximum number of
// clients (48) is lowered proportionally to the Compute Instance size". The GPUs that are simulated with instances have
// 7 slices.
func (g *gpu) setClients(whole int) error {
	g.maxContexts = whole
	if g.Instance == node.Whole {
		return nil
	}
	slices, err := g.GPU.Number(filepath.Join("mig", strconv.Itoa(g.Instance), "slices"))
	g.maxContexts = whole * slices / 7
	return err
}

// openFile opens the GPU's device file, as the real server does.
func (g *gpu) openFile(here node.Node) error {
	minor, err := g.GPU.Text("minor")
	if err != nil {
		return err
	}
	g.file, err = os.Open(filepath.Join(here.Dir, "dev", "nvidia"+minor))
	return err
}

// start initialises the server. The daemon's first packet holds the limits.
func (s *server) start() error {
	s.log.Line("Other", "Startup")
	s.log.Line("Other", "Connecting to control daemon on socket: %s/control", os.Getenv("CUDA_MPS_PIPE_DIRECTORY"))
	s.log.Line("Other", "Initializing server process")
	text, _, err := s.link.Receive()
	if err != nil {
		return fmt.Errorf("cannot read limits from control daemon: %w", err)
	}
	s.setLimits(text)
	whole := s.knobs.Wait("server_start_ms", initializing+creating)
	time.Sleep(whole * initializing / (initializing + creating))
	if s.knobs.On("server_dies_at_start") {
		return fmt.Errorf("cannot start: the knob server_dies_at_start is there")
	}
	if err := s.createContexts(); err != nil {
		return err
	}
	if err := s.startSamples(); err != nil {
		return err
	}
	time.Sleep(whole * creating / (initializing + creating))
	s.log.Line("Server", "Created anonymous shared memory region mps.shm.%d.%d", os.Getuid(), os.Getpid())
	s.log.Line("Server", "CUDA MPS Server for Linux/Unix. Binary version: 13000")
	s.log.Line("Server", "Display Driver version: 580")
	s.log.Line("Server", "Active Threads Percentage set to %s", s.shownPercentage())
	s.log.Line("Server", "Server Priority set to %d", s.priority)
	s.log.Line("Server", "Server has started")
	return s.link.Send(mark + "ready")
}

// handleSignals makes SIGTERM, SIGINT and SIGHUP have no effect while the knob server_ignores names them. Otherwise
// they end the server as SIGKILL does, if it was not started to ignore them.
func (s *server) handleSignals() {
	arrived := faults.Arrivals()
	go func() {
		for sent := range arrived {
			if !s.knobs.Names("server_ignores", sent) {
				os.Exit(128 + int(sent.(syscall.Signal)))
			}
		}
	}()
}

// setLimits reads "limits 33.333334 0 0=4G,1=2G".
func (s *server) setLimits(text string) {
	words := strings.Split(text, " ")
	if len(words) != 4 {
		return
	}
	s.percentage, _ = strconv.ParseFloat(words[1], 64)
	s.priority, _ = strconv.Atoi(words[2])
	for _, entry := range strings.Split(words[3], ",") {
		if device, value, ok := strings.Cut(entry, "="); ok {
			s.pinned[device] = value
		}
	}
}

// createContexts takes the GPUs. In exclusive-process mode it fails if another process already holds one of them.
func (s *server) createContexts() error {
	start, _ := node.Start(os.Getpid())
	for _, g := range s.devices {
		s.log.Line("Server", "Creating server context on device %d (%s)", g.ordinal, g.Name)
		err := g.GPU.AddContext(node.Context{PID: os.Getpid(), Start: start, Type: node.Server,
			MemoryMiB: serverMemory, Instance: g.Instance})
		if err != nil {
			return fmt.Errorf("cannot create server context on device %d (%s): %w", g.ordinal, g.Name, err)
		}
	}
	return nil
}

func (s *server) dropContexts() {
	for _, g := range s.devices {
		os.Remove(g.samplesPath())
		if err := g.GPU.DropContext(os.Getpid()); err != nil {
			s.log.Line("Server", "%v", err)
		}
	}
}

// pipes are the ends on one side of four pipes. Each connection of a client has these pipes beside its socket (seen
// on an H200). No data goes through them here. But /proc/PID/fd shows by them which client belongs to which server.
type pipes [4]int

// withPipes answers a client and gives it its ends of the pipes. If no descriptor is free, it gives none.
func withPipes(conn wire.Conn, answer string) (own pipes) {
	var theirs pipes
	for i := range own {
		ends := [2]int{-1, -1}
		syscall.Pipe2(ends[:], syscall.O_CLOEXEC)
		own[i], theirs[i] = ends[i%2], ends[1-i%2] // two of them go each way
	}
	defer theirs.close()
	if slices.Contains(theirs[:], -1) {
		conn.Send(answer)
		return own
	}
	conn.Send(answer, theirs[:]...)
	return own
}

func (p pipes) close() {
	for _, end := range p {
		syscall.Close(end)
	}
}
