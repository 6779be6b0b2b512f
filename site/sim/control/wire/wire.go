// SPDX-License-Identifier: Apache-2.0

// Package wire sends packets of text, some with open files, between the simulated MPS programs over unix sockets.
//
// A packet arrives complete or not at all. The peer's pid and uid come from the kernel, not from the peer.
package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// Most is the longest packet, in bytes.
const Most = 128 << 10

// Conn is one end of a connection.
type Conn struct{ unix *net.UnixConn }

// Peer is the process at the other end: the one that connected or listened, as the kernel noted it at that time.
type Peer struct{ PID, UID int }

// Listen makes the socket file path with the given mode. It replaces a file that an earlier daemon left. A path of
// more than 107 bytes is an error, because the name of a unix socket cannot be longer.
func Listen(path string, mode os.FileMode) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot replace socket %s: %w", path, err)
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(false) // a clean quit leaves the sockets
	if err := os.Chmod(path, mode); err != nil {
		listener.Close()
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	return listener, nil
}

// Dial connects to the socket file path.
func Dial(path string) (Conn, error) {
	unix, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return Conn{}, fmt.Errorf("cannot connect to %s: %w", path, err)
	}
	return Conn{unix}, nil
}

// Accept waits for the next connection to listener.
func Accept(listener *net.UnixListener) (Conn, error) {
	unix, err := listener.AcceptUnix()
	if err != nil {
		return Conn{}, fmt.Errorf("cannot accept connection: %w", err)
	}
	return Conn{unix}, nil
}

// Adopt makes a connection from an open descriptor. The connection then owns the descriptor.
func Adopt(fd int) (Conn, error) {
	file := os.NewFile(uintptr(fd), "socket")
	if file == nil {
		return Conn{}, fmt.Errorf("cannot adopt descriptor %d: %w", fd, os.ErrInvalid)
	}
	defer file.Close()
	generic, err := net.FileConn(file)
	if err != nil {
		return Conn{}, fmt.Errorf("cannot adopt descriptor %d: %w", fd, err)
	}
	unix, ok := generic.(*net.UnixConn)
	if !ok {
		generic.Close()
		return Conn{}, fmt.Errorf("cannot adopt descriptor %d: not a unix socket", fd)
	}
	return Conn{unix}, nil
}

// Pair makes two connected sockets. One end is a connection, and the other is a file to give to a child process.
func Pair() (Conn, *os.File, error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return Conn{}, nil, fmt.Errorf("cannot make a pair of sockets: %w", err)
	}
	own, err := Adopt(ends[0])
	if err != nil {
		syscall.Close(ends[1])
		return Conn{}, nil, err
	}
	return own, os.NewFile(uintptr(ends[1]), "socket"), nil
}

// Send sends text with the open descriptors files.
func (c Conn) Send(text string, files ...int) error {
	var rights []byte
	if len(files) > 0 {
		rights = syscall.UnixRights(files...)
	}
	_, _, err := c.unix.WriteMsgUnix([]byte(text), rights, nil)
	return err
}

// Receive waits for a packet. The caller closes the descriptors that come with it. The error io.EOF means that the
// peer has closed.
func (c Conn) Receive() (text string, files []int, err error) {
	packet, control := make([]byte, Most), make([]byte, syscall.CmsgSpace(4*4))
	n, nc, _, _, err := c.unix.ReadMsgUnix(packet, control)
	if err != nil {
		return "", nil, err
	}
	files = descriptors(control[:nc])
	if n == 0 && len(files) == 0 {
		return "", nil, io.EOF
	}
	return string(packet[:n]), files, nil
}

// Peek waits for a packet until the deadline and returns its beginning. The packet can still be received.
func (c Conn) Peek(deadline time.Time) (string, error) {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return "", err
	}
	c.unix.SetReadDeadline(deadline)
	defer c.unix.SetReadDeadline(time.Time{})
	begin := make([]byte, 64)
	var n int
	var failure error
	err = raw.Read(func(fd uintptr) bool {
		n, _, failure = syscall.Recvfrom(int(fd), begin, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return !errors.Is(failure, syscall.EAGAIN)
	})
	if err = errors.Join(err, failure); err != nil {
		return "", err
	}
	if n == 0 {
		return "", io.EOF
	}
	return string(begin[:n]), nil
}

// Peer returns the process at the other end.
func (c Conn) Peer() (Peer, error) {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var who *syscall.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) {
		who, failure = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(err, failure); err != nil {
		return Peer{}, fmt.Errorf("cannot find process at the other end: %w", err)
	}
	return Peer{PID: int(who.Pid), UID: int(who.Uid)}, nil
}

// Hand sends text on link together with this connection. Then it closes the connection here, because the receiver has
// it now.
func (c Conn) Hand(link Conn, text string) error {
	file, err := c.unix.File()
	if err != nil {
		return err
	}
	err = link.Send(text, int(file.Fd()))
	file.Close()
	c.Close()
	return err
}

// Close ends the connection. Packets that the peer has sent and this side has not received are lost; the peer sees a
// reset.
func (c Conn) Close() { c.unix.Close() }

// Reset reports whether err means that the peer closed with unread packets, or before a packet could be sent.
func Reset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ENOTCONN)
}

func descriptors(control []byte) []int {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	var files []int
	for _, message := range messages {
		if some, err := syscall.ParseUnixRights(&message); err == nil {
			files = append(files, some...)
		}
	}
	for _, file := range files {
		syscall.CloseOnExec(file)
	}
	return files
}
