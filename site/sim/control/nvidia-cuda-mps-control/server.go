// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

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
