// SPDX-License-Identifier: Apache-2.0

package take

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// told starts a process with this standard error, and returns what a taker answers that is to write a line into it.
func told(t *testing.T, stderr *os.File, text string) unix.Errno {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.Stderr = stderr
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pidfd := must.Get(unix.PidfdOpen(cmd.Process.Pid, 0))(t)
	defer unix.Close(pidfd)
	taken := Takers{Line: takerLine, Wait: soon, Place: uncounted}
	defer taken.Abandon(0)
	must.OK(t, taken.Start())
	_, code, err := taken.current.ask(pidfd, request{Number: 2, Text: text, UID: 2001, GID: 2002}, soon)
	must.OK(t, err)
	return code
}

// A line goes into the standard error of another process, if that is a pipe.
func TestALineInAPipe(t *testing.T) {
	reads, writes, err := os.Pipe()
	must.OK(t, err)
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
	must.Equal(t, fmt.Sprintf("%q", buffer[:n]), string(buffer[:n]), "rank 3 ended\n"+long[:maxTextLine-1]+"\n")
}

// connected returns the two ends of a connection to a service that any user may reach.
func connected(t *testing.T, kind int) (service, client *os.File) {
	t.Helper()
	dir, err := os.MkdirTemp("", "tell") // a short path
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	place := &unix.SockaddrUnix{Name: filepath.Join(dir, "s")}
	server, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(server, place)
	}
	if err == nil && kind != unix.SOCK_DGRAM {
		err = unix.Listen(server, 1)
	}
	ours, err2 := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err = errors.Join(err, err2); err == nil {
		err = unix.Connect(ours, place)
	}
	if err == nil && kind != unix.SOCK_DGRAM {
		listener := server
		server, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
		unix.Close(listener)
	}
	if err == nil {
		err = unix.SetsockoptInt(server, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	must.OK(t, err)
	service, client = os.NewFile(uintptr(server), "service"), os.NewFile(uintptr(ours), "client")
	t.Cleanup(func() { service.Close(); client.Close() })
	return service, client
}

// A service that asks the kernel who writes gets the job's user and group, never root.
func TestALineIsTheUsers(t *testing.T) {
	for name, kind := range map[string]int{
		"datagram": unix.SOCK_DGRAM, "stream": unix.SOCK_STREAM, "seqpacket": unix.SOCK_SEQPACKET,
	} {
		service, client := connected(t, kind)
		if code := told(t, client, "rank 3 ended\n"); code != 0 {
			t.Errorf("%s: %v", name, code)
			continue
		}
		text, rights := make([]byte, 512), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
		n, size, _, _, err := unix.Recvmsg(int(service.Fd()), text, rights, unix.MSG_DONTWAIT)
		must.OK(t, err)
		messages, err := unix.ParseSocketControlMessage(rights[:size])
		must.Have(t, err == nil && len(messages) == 1, "%s: %v, %v", name, messages, err)
		from, err := unix.ParseUnixCredentials(&messages[0])
		if err != nil || from.Uid != 2001 || from.Gid != 2002 || string(text[:n]) != "rank 3 ended\n" {
			t.Errorf("%s: the service gets %q from %+v, %v", name, text[:n], from, err)
		}
	}
}

// The line arrives where launchers' files are root's or the user's: in a pipe, a socket and a terminal.
func TestALineArrives(t *testing.T) {
	terminal := func() (reads, writes *os.File) {
		reads, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
		if err == nil {
			err = unix.IoctlSetPointerInt(int(reads.Fd()), unix.TIOCSPTLCK, 0)
		}
		must.OK(t, err)
		number, err := unix.IoctlGetInt(int(reads.Fd()), unix.TIOCGPTN)
		if err == nil {
			writes, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
		}
		must.OK(t, err)
		return reads, writes
	}
	pipe := func() (reads, writes *os.File) {
		reads, writes, err := os.Pipe()
		must.OK(t, err)
		return reads, writes
	}
	socket := func() (reads, writes *os.File) { return connected(t, unix.SOCK_STREAM) }
	for name, open := range map[string]func() (*os.File, *os.File){
		"a terminal": terminal, "a pipe": pipe, "a socket": socket,
	} {
		for _, owner := range []int{0, 2001} {
			reads, writes := open()
			if err := writes.Chmod(0o600); err != nil && name != "a socket" {
				t.Fatal(err)
			}
			if err := writes.Chown(owner, owner); err != nil && name != "a socket" {
				t.Fatal(err)
			}
			if code := told(t, writes, "rank 3 ended\n"); code != 0 {
				t.Errorf("%s of uid %d: %v", name, owner, code)
				continue
			}
			buffer := make([]byte, 512)
			n, err := unix.Read(int(reads.Fd()), buffer)
			if err != nil || strings.TrimSpace(string(buffer[:n])) != "rank 3 ended" {
				t.Errorf("%s of uid %d: %q, %v", name, owner, buffer[:max(n, 0)], err)
			}
			reads.Close()
			writes.Close()
		}
	}
}

// A full pipe, a pipe that no process reads, and a file get no line, and nothing waits for them.
func TestNoLine(t *testing.T) {
	reads, writes, err := os.Pipe()
	must.OK(t, err)
	_ = writes.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	for err = nil; err == nil; {
		_, err = writes.Write(make([]byte, 4096))
	}
	must.Equal(t, "a full pipe", told(t, writes, "line\n"), unix.EAGAIN)
	reads.Close()
	if code := told(t, writes, "line\n"); code != unix.EPIPE && code != unix.EAGAIN {
		t.Errorf("a pipe without a reader: %v", code)
	}
	writes.Close()
	path := filepath.Join(t.TempDir(), "file")
	file := must.Get(os.Create(path))(t)
	defer file.Close()
	must.Equal(t, "a file", told(t, file, "line\n"), unix.ENOTTY)
	if content, _ := os.ReadFile(path); len(content) > 0 {
		t.Errorf("the file has %q", content)
	}
}

// A taker that begins late, as on a busy machine, still writes its line.
func TestALineThatIsLate(t *testing.T) {
	reads, writes, err := os.Pipe()
	must.OK(t, err)
	defer reads.Close()
	cmd := exec.Command("sleep", "900")
	cmd.Stderr = writes
	must.OK(t, cmd.Start())
	writes.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pidfd := must.Get(unix.PidfdOpen(cmd.Process.Pid, 0))(t)
	defer unix.Close(pidfd)
	self := must.Get(os.Executable())(t)
	late := []string{"/bin/sh", "-c", `sleep 1; exec "$@"`, "sh", self, takerLine[1]}
	taken := Takers{Line: late, Place: uncounted}
	taken.Tell(pidfd, "rank 3 ended\n", 2001, 2002)
	_ = reads.SetReadDeadline(time.Now().Add(soon))
	line := make([]byte, 64)
	if n, err := reads.Read(line); string(line[:n]) != "rank 3 ended\n" {
		t.Errorf("%q, %v", line[:n], err)
	}
}
