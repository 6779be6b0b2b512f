// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// told starts a process with this standard error, and returns what a taker answers that is to write a line into it.
func told(t *testing.T, stderr *os.File, text string) unix.Errno {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	taken := takers{line: takerLine, wait: soon}
	defer taken.abandon(0)
	if err := taken.start(); err != nil {
		t.Fatal(err)
	}
	_, code, err := taken.current.ask(pidfd, request{Number: 2, Text: text}, soon)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// A line goes into the standard error of another process, if that is a pipe.
func TestALineInAPipe(t *testing.T) {
	reads, writes, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reads.Close()
	if code := told(t, writes, "rank 3 ended\n"); code != 0 {
		t.Error(code)
	}
	long := strings.Repeat("x", maxTextLine+1)
	if code := told(t, writes, long); code != 0 {
		t.Error(code)
	}
	writes.Close()
	_ = reads.SetReadDeadline(time.Now().Add(soon))
	buffer := make([]byte, 4096)
	n, _ := reads.Read(buffer)
	if want := "rank 3 ended\n" + long[:maxTextLine-1] + "\n"; string(buffer[:n]) != want {
		t.Errorf("%q", buffer[:n])
	}
}

// A full pipe, a pipe that no process reads, and a file get no line, and nothing waits for them.
func TestNoLine(t *testing.T) {
	reads, writes, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = writes.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	for err = nil; err == nil; {
		_, err = writes.Write(make([]byte, 4096))
	}
	if code := told(t, writes, "line\n"); code != unix.EAGAIN {
		t.Errorf("a full pipe: %v", code)
	}
	reads.Close()
	if code := told(t, writes, "line\n"); code != unix.EPIPE && code != unix.EAGAIN {
		t.Errorf("a pipe without a reader: %v", code)
	}
	writes.Close()
	path := filepath.Join(t.TempDir(), "file")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if code := told(t, file, "line\n"); code != unix.ENOTTY {
		t.Errorf("a file: %v", code)
	}
	if content, _ := os.ReadFile(path); len(content) > 0 {
		t.Errorf("the file has %q", content)
	}
}

func TestEndText(t *testing.T) {
	p := site.Process{PID: 4711}
	g := Guard{Options: Options{Minors: []int{2, 5}}, names: map[site.Process]string{}}
	for _, c := range []struct {
		name       string
		exit       exitStatus
		gpus       uint64
		neighbours int
		want       string
	}{
		{"rank 3", exitStatus{9, true}, 2, 3, "slurm-mps: rank 3 ended by signal 9 while GPU 5 had work; its 3 neighbours go on\n"},
		{"", exitStatus{1 << 8, true}, 0, 1, "slurm-mps: process 4711 ended with status 1 while its GPU had work; its 1 neighbour goes on\n"},
	} {
		g.names[p] = c.name
		if got := g.endText(&client{proc: p, exit: c.exit, gpus: c.gpus}, c.neighbours); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
