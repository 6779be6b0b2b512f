// SPDX-License-Identifier: Apache-2.0

// Package serverlog reads the logs of MPS servers. The job's user owns these files, so the user may have written
// them.
package serverlog

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Name is the name of the log of one daemon's servers.
const Name = "server.log"

// Open opens a file in a folder of the user. The user can put anything there: a link to a file that only root can
// read, a hard link to such a file, a pipe that never ends. So Open follows no link. The file must be a regular file
// of the user with only one name.
func Open(dir, name string, uid uint32) (*os.File, int64, error) {
	folder, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // a folder of root
	if err != nil {
		return nil, 0, err
	}
	defer unix.Close(folder)
	fd, err := unix.Openat2(folder, filepath.Join(filepath.Base(dir), name), &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, 0, err
	}
	file := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		file.Close()
		return nil, 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != uid || st.Nlink != 1 {
		file.Close()
		return nil, 0, fs.ErrInvalid
	}
	return file, st.Size, nil
}

// Line is a line of a log: "[2026-11-21 05:26:29.938 Server   829] Client process 957 disconnected".
type Line struct {
	Server string // the pid of the server
	Text   []byte
	head   []byte
}

// Parse splits a line. ok is false if the line does not have the form of a server's line.
func Parse(line []byte) (l Line, ok bool) {
	head, text, found := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte("] "))
	if !found {
		return l, false
	}
	return Line{Server: string(head[bytes.LastIndexByte(head, ' ')+1:]), Text: text, head: head}, true
}

// At returns the time of the line, in milliseconds of the node's time zone. It is zero if the line has no time.
func (l Line) At() time.Time {
	const form = "[2006-01-02 15:04:05.000"
	at, err := time.ParseInLocation(form, string(l.head[:min(len(l.head), len(form))]), time.Local)
	if err != nil {
		return time.Time{}
	}
	return at
}

// Failed returns the process that the server names for a fatal error. The text is "Client {PID: 906, Context: 1}
// encountered a fatal GPU error." If a client is killed while a kernel runs, the server names a neighbour of this
// client (measured on an H200).
func (l Line) Failed() (pid int, ok bool) {
	rest, ok := bytes.CutPrefix(l.Text, []byte("Client {"))
	word, text, _ := bytes.Cut(bytes.TrimPrefix(rest, []byte("PID: ")), []byte(","))
	pid, err := strconv.Atoi(string(word))
	return pid, ok && err == nil && bytes.HasSuffix(text, []byte(" encountered a fatal GPU error."))
}

// Disconnected returns the process that has ended. The text is "Client process 957 disconnected".
func (l Line) Disconnected() (pid int, ok bool) {
	rest, ok := bytes.CutPrefix(l.Text, []byte("Client process "))
	word, ended := bytes.CutSuffix(rest, []byte(" disconnected"))
	pid, err := strconv.Atoi(string(word))
	return pid, ok && ended && err == nil
}

// Fault reports whether a server begins to handle a fatal error.
func (l Line) Fault() bool {
	return bytes.Equal(l.Text, []byte("Server is handling a fatal GPU error."))
}
