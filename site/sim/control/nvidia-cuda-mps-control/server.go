// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

// server is the daemon's side of a server process. The daemon sends questions over a socket, and each gets one
// answer. If the server does not answer, the daemon waits. If the server dies, every question ends at once.
type server struct {
	pid     int
	uid     int // the user that it serves
	link    wire.Conn
	answers chan string
	dead    chan struct{}
	exit    int  // once dead
	ending  bool // it was told to end and will end soon
}

// start starts a server for the user uid. It waits until the server serves or dies, as the real daemon does, so every
// other caller waits as well. It returns nil if the server died.
func (d *daemon) start(uid int) *server {
	s, err := d.spawn(uid)
	if err != nil {
		d.logf("Failed to start server: %v", err)
		return nil
	}
	d.log.As(s.pid, "Control", "Starting new server %d for user %d", s.pid, uid)
	d.logf("Accepting connection...")
	s.link.Send("limits " + d.defaults.text())
	if s.nextAnswer() != "ready" {
		d.reap(s)
		return nil
	}
	d.logf("NEW SERVER %d: Ready", s.pid)
	d.server = s
	return s
}

// spawn runs the server program that is in the same folder as this program. The server gets the daemon's environment,
// session and directory. Descriptor 3 is the socket, and descriptor 4 is the log.
func (d *daemon) spawn(uid int) (*server, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find own program: %w", err)
	}
	link, theirs, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	command := exec.Command(filepath.Join(filepath.Dir(program), "nvidia-cuda-mps-server"))
	command.Args[0] = filepath.Join(filepath.Dir(os.Args[0]), "nvidia-cuda-mps-server")
	command.ExtraFiles = []*os.File{theirs, d.logForServer()}
	if err := command.Start(); err != nil {
		link.Close()
		return nil, fmt.Errorf("cannot start server: %w", err)
	}
	s := &server{pid: command.Process.Pid, uid: uid, link: link, answers: make(chan string, 1), dead: make(chan struct{})}
	go s.listen()
	go d.watch(s, command)
	return s, nil
}

// logForServer returns the file for the server's log lines: its log file, the foreground daemon's standard output, or
// /dev/null.
func (d *daemon) logForServer() *os.File {
	if d.foreground {
		return os.Stdout
	}
	if d.serverLog != nil {
		return d.serverLog
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return os.Stdout // it is /dev/null in a daemon
	}
	return null
}

func (s *server) listen() {
	for {
		text, _, err := s.link.Receive()
		if err != nil {
			return
		}
		select {
		case s.answers <- strings.TrimPrefix(text, "="): // the mark is there because a packet cannot be empty
		case <-s.dead:
			return
		}
	}
}

func (d *daemon) watch(s *server, command *exec.Cmd) {
	command.Wait()
	s.exit = command.ProcessState.ExitCode()
	if s.exit < 0 {
		s.exit = 1
	}
	s.link.Close()
	close(s.dead)
	d.gone <- s
}

// request asks the server and returns its answer, or "" if the server has died. If the server is stopped, request
// waits for ever.
func (s *server) request(text string) string {
	if s.link.Send(text) != nil {
		<-s.dead
		return ""
	}
	return s.nextAnswer()
}

func (s *server) nextAnswer() string {
	select {
	case text := <-s.answers:
		return text
	case <-s.dead:
		return ""
	}
}

// lines asks for an answer that has several lines.
func (s *server) lines(text string) []string {
	answer := s.request(text)
	if answer == "" {
		return nil
	}
	return strings.Split(answer, "\n")
}

// shutdown asks the server to end if it is idle. Otherwise it returns the number of worker threads that are active.
func (s *server) shutdown() (workers int, idle bool) {
	number, busy := strings.CutPrefix(s.request("shutdown"), "busy ")
	if !busy {
		s.ending = true
		return 0, true
	}
	workers, _ = strconv.Atoi(number)
	return workers, false
}

// reap waits for the end of a server that is known to be ending.
func (d *daemon) reap(s *server) {
	<-s.dead
	d.forget(s)
}

// forget notes once that a server is gone.
func (d *daemon) forget(s *server) {
	if s.uid < 0 {
		return
	}
	s.uid = -1
	d.logf("Server %d exited with status %d", s.pid, s.exit)
	if d.server == s {
		d.server = nil
	}
}

// alive returns the server. It returns nil if there is none or if it has just died.
func (d *daemon) alive() *server {
	if d.server == nil {
		return nil
	}
	select {
	case <-d.server.dead:
		d.forget(d.server)
	default:
	}
	return d.server
}

// client passes a CUDA program's connection to the server. It starts a server if none runs. Every user except the
// daemon's own, also root, is refused with 805. A daemon of root serves one user after the other.
func (d *daemon) client(a arrival) {
	if d.quitting.on || (d.uid != 0 && a.peer.UID != d.uid) {
		d.refuse(a, 805)
		return
	}
	if d.taken(a.peer.UID) {
		d.pending = append(d.pending, a)
		return
	}
	s := d.alive()
	if s != nil && s.ending {
		d.reap(s)
		s = nil
	}
	if s == nil {
		d.logf("NEW CLIENT %d from user %d: Server is not ready, push client to pending list", a.peer.PID, a.peer.UID)
		if s = d.start(a.peer.UID); s == nil {
			d.refuse(a, 805)
			return
		}
		d.logf("Accepting connection...")
	}
	d.logf("NEW CLIENT %d from user %d: Server already exists", a.peer.PID, a.peer.UID)
	_, context, _ := strings.Cut(a.text, " ")
	if a.conn.Hand(s.link, fmt.Sprintf("client %d %s", a.peer.PID, context)) != nil {
		a.conn.Close()
	}
}

// taken reports whether a server of another user is busy. It ends an idle server of another user.
func (d *daemon) taken(uid int) bool {
	s := d.alive()
	if s == nil || s.uid == uid || s.ending {
		return false
	}
	if _, idle := s.shutdown(); !idle {
		return true
	}
	d.reap(s)
	return false
}

func (d *daemon) refuse(a arrival, number int) {
	a.conn.Send(fmt.Sprintf("err %d", number))
	a.conn.Close()
}

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
