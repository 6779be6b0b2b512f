// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/control/faults"
	"github.com/slurm-mps/slurm-mps/site/sim/control/record"
	"github.com/slurm-mps/slurm-mps/site/sim/control/visible"
	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// noDevice is the exit code of a daemon that has no GPU because of its CUDA_VISIBLE_DEVICES. It is CUDA's error
// number.
const noDevice = 100

// daemon is the control daemon. One goroutine, run, does everything that a caller can see, one thing after the other.
// So if it waits for a server that does not answer, every caller waits. The real daemon hangs in the same way.
type daemon struct {
	node       node.Node
	knobs      faults.Knobs
	pipe       string
	uid        int
	log        record.Log
	serverLog  *os.File
	held       *os.File // control_lock
	listener   *net.UnixListener
	devices    []visible.Device
	foreground bool
	silent     bool // the knob silent_start

	arrivals   chan arrival
	gone       chan *server
	asked      chan struct{} // by a signal, to quit
	crowd      crowd
	server     *server // the server that runs, or nil
	pending    []arrival
	defaults   limits
	terminated bool // terminate_client was the last command
	quitting   quitting
	status     int // exit status once over
	over       bool
}

// arrival is something that a peer has sent. A CUDA client sends "client …" first. A control program sends "ui" first
// and then "command …"; the text is "closed" when the program has ended. The text is "" if a peer left without a
// packet.
type arrival struct {
	conn wire.Conn
	text string
	peer wire.Peer
}

func newDaemon(here node.Node, pipe string) *daemon {
	return &daemon{
		node: here, knobs: faults.Of(here), pipe: pipe, uid: os.Getuid(),
		log:      record.Log{To: io.Discard, PID: os.Getpid()},
		arrivals: make(chan arrival), gone: make(chan *server, 4), asked: make(chan struct{}),
		defaults: limitsOf(os.Getenv),
	}
}

// openLogs makes the log directory if it can. If dir is "", there are no log files. A daemon that cannot write there
// continues without log files, and the returned warning reports this.
func (d *daemon) openLogs(dir string) (warning string) {
	if dir == "" {
		return ""
	}
	os.Mkdir(dir, 0o700)
	control, err := appendTo(filepath.Join(dir, "control.log"))
	if err == nil {
		d.serverLog, err = appendTo(filepath.Join(dir, "server.log"))
	}
	if err != nil {
		return fmt.Sprintf("Warning: Failed writing log files to directory [%s]. No logs will be available.\n", dir)
	}
	d.log.To = control
	return ""
}

func appendTo(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
}

// findDevices sets the daemon's devices. It returns 0, or the exit code of a daemon that has no device.
func (d *daemon) findDevices() int {
	list, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	devices, err := visible.Devices(d.node, list, ok)
	if err != nil || len(devices) == 0 {
		return noDevice
	}
	d.devices = devices
	return 0
}

// listen makes the files of the pipe directory with the modes of the real ones.
func (d *daemon) listen() error {
	listener, err := wire.Listen(filepath.Join(d.pipe, "control"), 0o666)
	if err != nil {
		return err
	}
	d.listener = listener
	if _, err := wire.Listen(filepath.Join(d.pipe, "control_privileged"), 0o755); err != nil {
		return err
	}
	fifo := filepath.Join(d.pipe, "log")
	os.Remove(fifo)
	if err := syscall.Mkfifo(fifo, 0o777); err != nil {
		return fmt.Errorf("cannot make fifo %s: %w", fifo, err)
	}
	path := filepath.Join(d.pipe, "nvidia-cuda-mps-control.pid")
	os.Remove(path)
	return os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())), 0o666)
}

// silentFor is how long a daemon with the knob silent_start runs. It ends by itself so that a test that forgets it
// leaves no process.
const silentFor = 30 * time.Second

// run serves until quit and returns the exit code.
func (d *daemon) run() int {
	if d.silent {
		time.Sleep(silentFor)
		return 1
	}
	d.logf("Starting control daemon using socket %s", filepath.Join(d.pipe, "control"))
	d.logf("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", d.pipe)
	d.logf("CUDA MPS Control binary version: 13000")
	go d.accept()
	for !d.over {
		d.logf("Accepting connection...")
		d.next()
	}
	return d.status
}

// tidy removes the files that a clean quit removes. The sockets and the lock file stay.
func (d *daemon) tidy() {
	os.Remove(filepath.Join(d.pipe, "log"))
	os.Remove(filepath.Join(d.pipe, "nvidia-cuda-mps-control.pid"))
}

func (d *daemon) logf(format string, values ...any) { d.log.Line("Control", format, values...) }

// next waits for one event and handles it.
func (d *daemon) next() {
	var again <-chan time.Time
	if len(d.pending) > 0 {
		again = time.After(50 * time.Millisecond)
	}
	select {
	case a := <-d.arrivals:
		d.knobs.HoldWhile("deaf")
		d.welcome(a)
	case s := <-d.gone:
		d.forget(s)
	case <-d.asked:
		d.quit([]string{"-t", "0"}, arrival{})
	case <-d.quitting.again():
		d.tryQuit()
	case <-again:
		waiting := d.pending
		d.pending = nil
		for _, a := range waiting {
			d.client(a)
		}
	}
}

func (d *daemon) welcome(a arrival) {
	word, rest, _ := strings.Cut(a.text, " ")
	switch word {
	case "ui":
		d.logf("NEW UI")
	case "command":
		d.command(a, rest)
	case "closed":
		d.logf("UI closed")
	case "client":
		d.client(a)
	default:
		d.logf("User did not send valid credentials")
		a.conn.Close()
	}
}

// accept takes connections in the order in which they come.
func (d *daemon) accept() {
	for {
		conn, err := wire.Accept(d.listener)
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no descriptor is free: the daemon continues, as the real one does
			continue
		}
		go d.receive(conn)
	}
}

// firstPacketDeadline bounds the wait for a peer's first packet.
const firstPacketDeadline = 2 * time.Second

func (d *daemon) receive(conn wire.Conn) {
	begin, err := conn.Peek(time.Now().Add(firstPacketDeadline))
	peer, err2 := conn.Peer()
	if err != nil || err2 != nil {
		d.arrivals <- arrival{conn: conn}
		return
	}
	if begin == "ui" {
		d.session(conn, peer)
		return
	}
	text, _, err := conn.Receive()
	if err != nil {
		text = ""
	}
	d.arrivals <- arrival{conn, text, peer}
}

// session passes the commands of one control program to run, until the program ends.
func (d *daemon) session(conn wire.Conn, peer wire.Peer) {
	defer conn.Close()
	if !d.crowd.enter(conn) {
		d.crowd.reject(conn)
		return
	}
	for {
		text, _, err := conn.Receive()
		if err != nil {
			d.crowd.leave(conn) // before run gets the arrival, because run may be busy for a long time
			d.arrivals <- arrival{conn, "closed", peer}
			return
		}
		d.arrivals <- arrival{conn, text, peer}
	}
}

// answering is the time that a command takes the daemon. 2 to 5 ms were measured, with the start of the control
// program included.
const answering = 2 * time.Millisecond

// command answers one command of a control program. After quit has begun, the daemon still does each command and
// writes the answer into its log, but sends no answer (measured).
func (d *daemon) command(a arrival, command string) {
	d.logf("Cmd:%s", command)
	time.Sleep(d.knobs.Wait("slow_ms", answering))
	answer := d.answer(strings.Fields(command), a)
	for _, line := range answer.logged {
		d.logf("%s", line)
	}
	if !answer.later && !d.quitting.on {
		d.reply(a.conn, answer.lines, answer.code)
	}
	if d.terminated && d.knobs.On("wedge_after_terminate") {
		d.knobs.HoldWhile("wedge_after_terminate")
	}
	d.terminated = false
}

// reply sends the lines that a control program prints, or the lines that a knob sets instead.
func (d *daemon) reply(conn wire.Conn, lines []string, code int) {
	for d.knobs.On("endless_answer") {
		if conn.Send("out "+strings.Repeat("endless ", 100)) != nil {
			return
		}
	}
	if garbage, ok := d.knobs.Text("garbage_answer"); ok {
		lines = []string{strings.TrimSuffix(garbage, "\n")}
	}
	for _, line := range lines {
		conn.Send("out " + line)
	}
	d.crowd.leave(conn)
	conn.Send(fmt.Sprintf("end %d", code))
}
