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

// noDevice is the exit code of a daemon whose CUDA_VISIBLE_DEVICES leaves it no GPU: CUDA's error number.
const noDevice = 100

// daemon is the control daemon. One goroutine, run, does everything that a caller can see, one thing after the other:
// so a wait for a server that does not answer holds up everybody, which is how the real daemon wedges.
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

	arrivals chan arrival
	gone     chan *server
	crowd    crowd
	server   *server // the one that runs, or nil
	pending  []arrival
	defaults limits
	struck   bool // a terminate_client has just been done
	quitting quitting
	status   int // exit status once over
	over     bool
}

// arrival is something that a peer has sent: a CUDA client's first packet ("client …"), a control program's greeting
// ("ui") or command ("command …"), its end ("closed"), or "" from a peer that left without a word.
type arrival struct {
	conn wire.Conn
	text string
	peer wire.Peer
}

func newDaemon(here node.Node, pipe string) *daemon {
	return &daemon{
		node: here, knobs: faults.Of(here), pipe: pipe, uid: os.Getuid(),
		log:      record.Log{To: io.Discard, PID: os.Getpid()},
		arrivals: make(chan arrival), gone: make(chan *server, 4),
		defaults: limitsOf(os.Getenv),
	}
}

// openLogs makes the log directory where it can; "" stands for no log files. A daemon that cannot write there goes on
// without, and the warning that is returned says so.
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

// findDevices is 0, or the exit code of a daemon that has no device to serve.
func (d *daemon) findDevices() int {
	list, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	devices, err := visible.Devices(d.node, list, ok)
	if err != nil || len(devices) == 0 {
		return noDevice
	}
	d.devices = devices
	return 0
}

// listen makes the files of the pipe directory, with the modes of the real ones.
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

// silentFor is how long a daemon with the knob silent_start stays, so that a test that forgets it leaves nothing
// behind.
const silentFor = 30 * time.Second

// run serves until quit, and returns the exit code.
func (d *daemon) run() int {
	if d.silent {
		time.Sleep(silentFor)
		return 1
	}
	d.say("Starting control daemon using socket %s", filepath.Join(d.pipe, "control"))
	d.say("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", d.pipe)
	d.say("CUDA MPS Control binary version: 13000")
	go d.accept()
	for !d.over {
		d.say("Accepting connection...")
		d.next()
	}
	return d.status
}

// tidy removes what a clean quit removes; the sockets and the lock file stay.
func (d *daemon) tidy() {
	os.Remove(filepath.Join(d.pipe, "log"))
	os.Remove(filepath.Join(d.pipe, "nvidia-cuda-mps-control.pid"))
}

func (d *daemon) say(format string, values ...any) { d.log.Line("Control", format, values...) }

// next does the next thing that there is to do.
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
		d.say("NEW UI")
	case "command":
		d.command(a, rest)
	case "closed":
		d.say("UI closed")
	case "client":
		d.client(a)
	default:
		d.say("User did not send valid credentials")
		a.conn.Close()
	}
}

// accept takes connections as they come.
func (d *daemon) accept() {
	for {
		conn, err := wire.Accept(d.listener)
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: the daemon stays, as the real one does
			continue
		}
		go d.receive(conn)
	}
}

// firstWord bounds the wait for what a peer has to say first.
const firstWord = 2 * time.Second

func (d *daemon) receive(conn wire.Conn) {
	begin, err := conn.Peek(time.Now().Add(firstWord))
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

// session passes on the commands of one control program until it leaves.
func (d *daemon) session(conn wire.Conn, peer wire.Peer) {
	defer conn.Close()
	if !d.crowd.enter(conn) {
		d.crowd.turnAway(conn)
		return
	}
	for {
		text, _, err := conn.Receive()
		if err != nil {
			d.crowd.leave(conn) // before run hears of it, which may be busy for long
			d.arrivals <- arrival{conn, "closed", peer}
			return
		}
		d.arrivals <- arrival{conn, text, peer}
	}
}

// answering is what a command takes the daemon; measured were 2 to 5 ms, the control program's own start included.
const answering = 2 * time.Millisecond

// command answers one command of a control program. While the daemon is on its way out it does what it is asked and
// writes the answer into its log, but sends none: measured.
func (d *daemon) command(a arrival, command string) {
	d.say("Cmd:%s", command)
	time.Sleep(d.knobs.Wait("slow_ms", answering))
	answer := d.answer(strings.Fields(command), a)
	for _, line := range answer.logged {
		d.say("%s", line)
	}
	if !answer.later && !d.quitting.on {
		d.reply(a.conn, answer.lines, answer.code)
	}
	if d.struck && d.knobs.On("wedge_after_terminate") {
		d.knobs.HoldWhile("wedge_after_terminate")
	}
	d.struck = false
}

// reply sends the lines that a control program prints, or what a knob puts in their place.
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
