package mpirunwrap

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// A server's log says what it would cost a question to ask: whom the server serves, and whether a fatal error is over. It
// lies in a folder of the user's, so it is read only where it is a regular file, and never more of it than is said here.
const (
	tailBytes  = 64 << 10 // a fault of 48 clients fills 15 KiB, and a launch of so many 45 KiB (measured: 10 lines a client)
	chunkBytes = 64 << 10
)

// openLog opens the log of a daemon's servers for reading. The descriptor is the caller's to close.
func openLog(dir string) (fd int, st unix.Stat_t, err error) {
	path := filepath.Join(dir, "server.log")
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, st, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.EINVAL
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return fd, st, nil
}

// logTail is the end of a server's log, nothing where it cannot be read.
func logTail(dir string) []byte {
	fd, st, err := openLog(dir)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	tail := make([]byte, min(st.Size, tailBytes))
	n, err := unix.Pread(fd, tail, max(0, st.Size-tailBytes))
	if err != nil {
		return nil
	}
	return tail[:n]
}

// fault is what a log says of a fatal error that is not over.
type fault struct {
	server  int   // its pid, 0 where there is no fault
	clients []int // processes that the error hit and that have not gone
	listed  bool  // the server has said which they are
}

// What begins a fault, what a client is told meanwhile, and what is done for the first client after it.
var (
	fatalError = []byte("fatal GPU error")
	refusal    = []byte("Server teardown in progress")
	restored   = []byte("Creating server context on device ")
)

// readFault reads the end of a log. A fault is over when every process has gone that was said to have the error: until
// then new clients get 807, and after that none does (measured).
//
//	[2026-11-21 05:26:29.822 Server   829] Server is handling a fatal GPU error.
//	[2026-11-21 05:26:29.822 Server   829] The following devices will be reset:
//	[2026-11-21 05:26:29.822 Server   829] 0
//	[2026-11-21 05:26:29.822 Server   829] The following client process have a sticky error set:
//	[2026-11-21 05:26:29.822 Server   829] 957
//	[2026-11-21 05:26:29.938 Server   829] Client process 957 disconnected
func readFault(tail []byte) fault {
	if !bytes.Contains(tail, fatalError) && !bytes.Contains(tail, refusal) { // the usual case costs no more
		return fault{}
	}
	var f fault
	sticky := false // numbers are those of processes, not of devices
	for line := range bytes.Lines(tail) {
		server, text := entry(line)
		number, err := strconv.Atoi(string(text))
		switch {
		case bytes.HasPrefix(text, restored):
			f = fault{}
		case bytes.Contains(text, fatalError):
			f.server, f.listed = server, false
		case bytes.HasPrefix(text, refusal):
			f.server = server
		case bytes.HasPrefix(text, []byte("The following ")):
			sticky = bytes.Contains(text, []byte("sticky error"))
		case err == nil && sticky && f.server != 0:
			f.clients, f.listed = append(f.clients, number), true
		default:
			f.leave(text)
		}
	}
	return f
}

// leave takes a process from a fault that has gone, and the fault with the last.
func (f *fault) leave(text []byte) {
	rest, ok := bytes.CutPrefix(text, []byte("Client process "))
	word, ok2 := bytes.CutSuffix(rest, []byte(" disconnected"))
	if !ok || !ok2 {
		return
	}
	f.clients = slices.DeleteFunc(f.clients, func(pid int) bool { return strconv.Itoa(pid) == string(word) })
	if f.listed && len(f.clients) == 0 {
		*f = fault{}
	}
}

// entry takes a line apart: the pid of the process that wrote it, and what it says.
func entry(line []byte) (pid int, text []byte) {
	head, text, found := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte("] "))
	if !found {
		return 0, nil
	}
	pid, _ = strconv.Atoi(string(head[bytes.LastIndexByte(head, ' ')+1:]))
	return pid, text
}

// clientOf is the process that a line says has come to the server: "Client {PID: 827, Context ID: 0} connected", and with
// drivers before 580 "Client {827, 0} connected". One that was refused came as well; CUDA told it so.
func clientOf(line []byte) (pid int, ok bool) {
	_, text := entry(line)
	rest, came := bytes.CutPrefix(text, []byte("Client {"))
	if !came {
		rest, came = bytes.CutPrefix(text, []byte("Failed to accept client {"))
	}
	if !came {
		return 0, false
	}
	word, _, _ := bytes.Cut(bytes.TrimPrefix(rest, []byte("PID: ")), []byte(","))
	pid, err := strconv.Atoi(string(word))
	return pid, err == nil && pid > 0
}

// attached follows a log and knows the processes that have become clients since it began to.
type attached struct {
	dir    string
	inode  uint64
	offset int64
	lost   bool // the log is another's, or too much: nothing is known any more
	pids   map[int]bool
}

const (
	mostRead       = 4 << 20 // at once: 4 ms
	mostRemembered = 1 << 14 // processes: 0.6 MiB
)

// follow begins at the end of a log, or at the beginning of one that is not there yet.
func follow(dir string) *attached {
	a := &attached{dir: dir, pids: map[int]bool{}}
	if fd, st, err := openLog(dir); err == nil {
		a.inode, a.offset = st.Ino, st.Size
		unix.Close(fd)
	}
	return a
}

// read reads what the log has got since, and reports whether all of that is known now.
func (a *attached) read() bool {
	fd, st, err := openLog(a.dir)
	if err != nil {
		return a.inode == 0 && errors.Is(err, unix.ENOENT) // no server has begun one
	}
	defer unix.Close(fd)
	if a.inode == 0 {
		a.inode = st.Ino
	}
	a.lost = a.lost || st.Ino != a.inode || st.Size < a.offset
	buffer := make([]byte, chunkBytes)
	for end := min(st.Size, a.offset+mostRead); !a.lost && a.offset < end; {
		n, err := unix.Pread(fd, buffer, a.offset)
		if err != nil {
			return false
		}
		whole := bytes.LastIndexByte(buffer[:n], '\n') + 1
		if whole == 0 { // the beginning of a line, which is none of the server's where it fills the buffer
			return n < len(buffer)
		}
		a.take(buffer[:whole])
	}
	return !a.lost && a.offset >= st.Size
}

// take takes whole lines.
func (a *attached) take(lines []byte) {
	a.offset += int64(len(lines))
	for line := range bytes.Lines(lines) {
		if pid, ok := clientOf(line); ok {
			a.pids[pid] = true
		}
	}
	a.lost = len(a.pids) > mostRemembered
}
