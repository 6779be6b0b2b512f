// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// The ranks of a step meet at a socket in the abstract namespace of their network. It is in no folder, so no one can
// clean, hide, fill or lock it, and the kernel frees its name when its last holder has ended, however that ended. Only
// one process can bind the name, and the kernel says whose process is at the other end.

// hello is what a rank sends when it has connected.
type hello struct {
	Hidden bool // the rank has printed that its program cannot be guarded: it becomes the program now
}

// answer is what the keeper sends to a rank, with a descriptor of the step's life.
type answer struct {
	Ticket     lease.Ticket
	Dir        string // the step's folder
	Inode      uint64 // of Dir: a container may have another folder of this name, or none
	Supervisor int    // the pid of the process that may take the rank's files
	Unguarded  string // why the keeper can guard no rank, "" if it can
}

// maxMessage is above what an answer needs: a ticket with 64 GPUs has 20 KiB.
const maxMessage = 128 << 10

// address is the name at which the ranks of a step meet.
func (s step) address() *unix.SockaddrUnix {
	return &unix.SockaddrUnix{Name: "@slurm-mps-own-" + strconv.Itoa(os.Getuid()) + "-" + s.key}
}

// errEnding means that there is no keeper at this moment: none has started, or it ends.
var errEnding = errors.New("the daemon of earlier ranks ends")

// connect returns a connection with a step's keeper, for the time that ctx has: it must have a deadline. The caller
// closes it.
func connect(ctx context.Context, address *unix.SockaddrUnix) (*os.File, error) {
	conn, err := newSocket(address)
	if err != nil {
		return nil, err
	}
	until, _ := ctx.Deadline()
	if err = setTimeouts(conn, time.Until(until)); err == nil {
		err = unix.Connect(int(conn.Fd()), address)
	}
	if err == nil {
		err = checkKeeper(conn, address)
	} else if errors.Is(err, unix.ECONNREFUSED) {
		err = errEnding
	} else {
		err = fmt.Errorf("cannot connect to %s: %w", address.Name, err)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// checkKeeper checks that this user's process is at the other end of a connection.
func checkKeeper(conn *os.File, address *unix.SockaddrUnix) error {
	peer, err := peerOf(conn)
	if err != nil {
		return fmt.Errorf("cannot see who listens at %s: %w", address.Name, err)
	}
	if peer.Uid != uint32(os.Getuid()) {
		return fmt.Errorf("cannot start an MPS daemon: process %d of uid %d listens at %s, the name of this step: tell the admin of this node",
			peer.Pid, peer.Uid, address.Name)
	}
	return nil
}

// peerOf returns the user and the process at the other end of a connection, by the kernel.
func peerOf(conn *os.File) (*unix.Ucred, error) {
	return unix.GetsockoptUcred(int(conn.Fd()), unix.SOL_SOCKET, unix.SO_PEERCRED)
}

// listen binds a step's name. The error is errEnding if another process has it.
func listen(address *unix.SockaddrUnix) (*os.File, error) {
	socket, err := newSocket(address)
	if err != nil {
		return nil, err
	}
	if err = unix.Bind(int(socket.Fd()), address); err == nil {
		err = unix.Listen(int(socket.Fd()), unix.SOMAXCONN)
	}
	if err == nil {
		return socket, nil
	}
	socket.Close()
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errEnding
	}
	return nil, fmt.Errorf("cannot listen at %s: %w", address.Name, err)
}

// newSocket returns a socket that keeps messages apart.
func newSocket(address *unix.SockaddrUnix) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make a socket: %w", err)
	}
	return os.NewFile(uintptr(fd), address.Name), nil
}

// setTimeouts limits each wait for the other end.
func setTimeouts(conn *os.File, limit time.Duration) error {
	left := unix.NsecToTimeval(max(limit, time.Millisecond).Nanoseconds()) // 0 would be no limit
	return errors.Join(unix.SetsockoptTimeval(int(conn.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &left),
		unix.SetsockoptTimeval(int(conn.Fd()), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &left))
}

// send sends a message, with a descriptor if there is a file.
func send(conn *os.File, message any, file *os.File) error {
	content, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	return unix.Sendmsg(int(conn.Fd()), content, rights, nil, unix.MSG_NOSIGNAL)
}

// receive reads a message into one, with the descriptor that came with it, nil for none. The error is errEnding if the
// other end has closed the connection.
func receive(conn *os.File, message any) (*os.File, error) {
	content, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	var n, space int
	var err error
	for again := true; again; again = errors.Is(err, unix.EINTR) {
		n, space, _, _, err = unix.Recvmsg(int(conn.Fd()), content, rights, unix.MSG_CMSG_CLOEXEC)
	}
	switch {
	case errors.Is(err, unix.ECONNRESET) || err == nil && n == 0:
		return nil, errEnding
	case err != nil:
		return nil, err
	}
	file := descriptor(rights[:space])
	if err := json.Unmarshal(content[:n], message); err != nil {
		if file != nil {
			file.Close()
		}
		return nil, err
	}
	return file, nil
}

// descriptor returns the file of a control message, nil for none.
func descriptor(rights []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "life")
}
