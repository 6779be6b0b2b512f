package main

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

func init() {
	if len(os.Args) > 1 && os.Args[1] == "beheaded" {
		runtime.LockOSThread()
	}
}

// serve replaces the server of a daemon by a server of the user.
func serve(pipe, answers string) error {
	listener, err := replace(pipe)
	if err != nil {
		return err
	}
	go accept(listener, answers)
	return sleep()
}

// between is a pause between two attempts, so that the attacked programs get processor time.
const between = 100 * time.Microsecond

// usurp calls replace as soon as a daemon runs, and again when another daemon starts.
func usurp(pipe, answers string) error {
	path := filepath.Join(pipe, "control")
	var own os.FileInfo
	return until(func() {
		time.Sleep(between)
		info, err := os.Lstat(path)
		if err != nil || own != nil && os.SameFile(info, own) {
			return
		}
		if listener, err := replace(pipe); err == nil {
			own, _ = os.Lstat(path)
			go accept(listener, answers)
		}
	})
}

// quit tells every daemon of a folder to end.
func quit(pipe string) error {
	return until(func() {
		time.Sleep(between)
		conn, err := wire.Dial(filepath.Join(pipe, "control"))
		if err != nil {
			return
		}
		defer conn.Close()
		if conn.Send("ui") == nil && conn.Send("command quit") == nil {
			_, _, _ = conn.Receive()
		}
	})
}

// replace puts a socket of the user at the path of a daemon's socket.
func replace(pipe string) (*net.UnixListener, error) {
	draft := filepath.Join(pipe, "draft")
	listener, err := wire.Listen(draft, 0o666)
	if err != nil {
		return nil, err
	}
	return listener, os.Rename(draft, filepath.Join(pipe, "control"))
}

func accept(listener *net.UnixListener, answers string) {
	for {
		conn, err := wire.Accept(listener)
		if err != nil {
			return
		}
		go converse(conn, answers)
	}
}

// escapes are control sequences of a terminal, a text like a line of the log, and bytes that are no text.
const escapes = "\x1b[2J\x1b]0;owned\x07\u009b31m\u202e{\"level\":\"error\"}\r\xff\xfe\x00"

// converse answers the commands of one control program. The name of the answers may have an argument: "names PID".
func converse(conn wire.Conn, answers string) {
	defer conn.Close()
	kind, argument, _ := strings.Cut(answers, " ")
	for {
		text, _, err := conn.Receive()
		command, isCommand := strings.CutPrefix(text, "command ")
		if err != nil || isCommand && !answer(conn, kind, argument, command) {
			return
		}
	}
}

// answer answers one command and reports whether the conversation continues.
func answer(conn wire.Conn, kind, argument, command string) bool {
	switch kind {
	case "silent":
		time.Sleep(lifetime)
	case "reset":
		return false
	case "drip":
		for conn.Send("out .") == nil {
			time.Sleep(100 * time.Millisecond)
		}
	case "endless":
		for line := "out " + strings.Repeat("endless ", 12000); conn.Send(line) == nil; {
		}
	case "escapes":
		conn.Send("out " + escapes + "\n" + escapes)
	case "refuses":
		conn.Send("out Insufficient privileges")
	case "thousands":
		thousands(conn, command)
	case "names":
		names(conn, argument, command)
	}
	return conn.Send("end 0") == nil
}

// thousands lists more clients than a node can have.
func thousands(conn wire.Conn, command string) {
	for i := 0; strings.HasPrefix(command, "ps") && i < 5000; i++ {
		conn.Send("out " + strconv.Itoa(i+1) + " 1 1")
	}
	conn.Send("out 100.0")
}

// names lists a process of another user as a client, and confirms every command.
func names(conn wire.Conn, pid, command string) {
	switch verb, _, _ := strings.Cut(command, " "); verb {
	case "ps":
		conn.Send("out PID       ID        SERVER")
		conn.Send("out " + pid + " 1 1 GPU-x 1 /victim")
	case "get_default_active_thread_percentage":
		conn.Send("out 100.0")
	case "terminate_client":
		conn.Send("out 0")
	}
}
