// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is an interactive shell on its own terminal.
type terminal struct {
	*rank
	keys *os.File
	mu   sync.Mutex
	seen strings.Builder
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Fatal(err)
	}
	term := &terminal{rank: newRank(t)}
	var screen *os.File
	term.keys, screen = openTerminal(t)
	defer screen.Close()
	shell := exec.Command("bash", "--norc", "--noprofile", "-i")
	shell.Dir, shell.Stdin, shell.Stdout, shell.Stderr = term.dir, screen, screen, screen
	shell.Env = append(term.env, "PS1=$ ", "WRAP="+strings.Join(term.wrapper(), " "))
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shell.Process.Kill(); _ = shell.Wait(); term.keys.Close() })
	go term.read()
	return term
}

func openTerminal(t *testing.T) (keys, screen *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := keys.SyscallConn() // not Fd, which makes a Close wait for the Read
	if err != nil {
		t.Fatal(err)
	}
	var n int
	err = raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return keys, screen
}

func (t *terminal) read() {
	buffer := make([]byte, 4096)
	for {
		n, err := t.keys.Read(buffer)
		t.mu.Lock()
		t.seen.Write(buffer[:n])
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (t *terminal) types(keys string) {
	t.t.Helper()
	if _, err := t.keys.WriteString(keys); err != nil {
		t.t.Fatal(err)
	}
}

func (t *terminal) sees(text string) {
	t.t.Helper()
	defer func() {
		if t.t.Failed() {
			t.t.Logf("screen:\n%s", t.screen())
		}
	}()
	t.until(fmt.Sprintf("%q on the screen", text), func() bool { return strings.Contains(t.screen(), text) })
}

func (t *terminal) screen() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen.String()
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// counts is a program that prints how often it was interrupted.
const counts = `
import os, signal, time
n = 0
def count(*_):
    global n
    n += 1
signal.signal(signal.SIGINT, count)
open("pid", "w").write("%d\n" % os.getpid())
while n == 0:
    time.sleep(0.01)
time.sleep(0.3)
print("caught", n, flush=True)
os._exit(7)
`

// A terminal works for the program as without the wrapper: the program reads lines, and the keys that end and stop it
// work.
func TestATerminal(t *testing.T) {
	t.Run("a program that reads", func(t *testing.T) {
		term := newTerminal(t)
		term.types("$WRAP sh -c 'echo $$ >pid; read line; echo read: $line; exit 3'\n")
		term.proc("pid")
		term.types("loud\n")
		term.sees("read: loud")
		term.types("echo code $? end\n")
		term.sees("code 3 end")
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		term := newTerminal(t)
		term.types("$WRAP sh -c 'echo $$ >pid; exec sleep 900'\n")
		program := term.proc("pid")
		term.types(ctrlC)
		term.types("echo code $? end\n")
		term.sees("code 130 end")
		if program.Running() {
			t.Error("the program lives")
		}
	})
	t.Run("Ctrl-C for a program that catches it", func(t *testing.T) {
		term := newTerminal(t)
		if err := os.WriteFile(filepath.Join(term.dir, "counts.py"), []byte(counts), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := exec.LookPath("python3"); err != nil {
			t.Skip("needs python3")
		}
		term.types("$WRAP python3 counts.py\n")
		term.proc("pid")
		term.types(ctrlC)
		term.sees("caught 1")
		term.types("echo code $? end\n")
		term.sees("code 7 end")
	})
	t.Run("Ctrl-Z and fg", func(t *testing.T) {
		term := newTerminal(t)
		term.types("$WRAP sh -c 'echo $$ >pid; exec sleep 60'\n")
		program := term.proc("pid")
		term.types(ctrlZ)
		term.until("stopped program", func() bool { return stateOf(program) == 'T' })
		term.types("echo shell again $(jobs -s | wc -l)\n")
		term.sees("shell again 1")
		term.types("fg\n")
		term.until("program that runs", func() bool { return stateOf(program) == 'S' })
		term.types(ctrlC)
		term.types("echo code $? end\n")
		term.sees("code 130 end")
	})
}

// When the terminal is closed, a shell's jobs get SIGHUP, and nothing is left.
func TestATerminalThatHangsUp(t *testing.T) {
	term := newTerminal(t)
	term.types("$WRAP sh -c 'echo $$ >pid; exec sleep 60'\n")
	program := term.proc("pid")
	term.keys.Close()
	term.until("end of the program", func() bool { return !program.Running() })
}
