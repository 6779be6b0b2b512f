// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxStuck bounds the takers that wait for the file system of a user to close a file.
	maxStuck = 8
	// takerWait is how long an answer of a taker may take. It comes within a millisecond on a node that is not overloaded.
	takerWait = time.Second
)

var (
	errStuck = errors.New("the job's user has put files in the place of device files, and they do not close")
	// errChanged says that a descriptor was another file by the time that it was duplicated.
	errChanged = errors.New("the file has changed")
)

// takers duplicate descriptors of clients for the guard. Between the look and the duplicate a process may put any file in the
// place of the one that was seen, and for as long as a user's file system likes that duplicate does not close: the kernel keeps
// whoever closes it, with all other files, even when killed. So a process of its own duplicates, and hands the guard nothing
// but files that it has looked at.
type takers struct {
	line    []string      // the command line of a taker
	wait    time.Duration // how long an answer may take
	current *taker
	stuck   atomic.Int32 // takers that have not answered
}

// taker is a process that runs Take.
type taker struct {
	socket  int
	process *os.Process
}

// duplicate duplicates a descriptor of a process, given by a pidfd. With errChanged it is no longer that file.
func (t *takers) duplicate(pidfd, number int, wanted identity) (fd int, err error) {
	if err := t.start(); err != nil {
		return -1, err
	}
	fd, code, err := t.current.ask(pidfd, request{Number: uint32(number), Wanted: wanted}, t.wait)
	switch {
	case err != nil: // no answer
		t.leave()
		return -1, err
	case code == hasChanged:
		return -1, errChanged
	case code != 0:
		return -1, code
	}
	return fd, nil
}

// start starts a taker unless one runs.
func (t *takers) start() (err error) {
	if t.current != nil {
		return nil
	}
	if t.stuck.Load() >= maxStuck {
		return errStuck
	}
	if t.current, err = startTaker(t.line); err != nil {
		return fmt.Errorf("cannot start %q: %w", t.line, err)
	}
	return nil
}

// leave leaves the current taker to the file that it closes, and to its end.
func (t *takers) leave() {
	if t.current == nil {
		return
	}
	unix.Close(t.current.socket) // its order to end
	process := t.current.process
	t.current = nil
	t.stuck.Add(1)
	go func() {
		_, _ = process.Wait()
		t.stuck.Add(-1)
	}()
}

func startTaker(line []string) (*taker, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "taker")
	defer theirs.Close()
	// It answers on its standard input: Go lets no other number through without one before it.
	process, err := os.StartProcess(line[0], line, &os.ProcAttr{Dir: "/", Env: []string{}, Files: []*os.File{theirs}})
	if err != nil {
		unix.Close(pair[0])
		return nil, err
	}
	return &taker{pair[0], process}, nil
}

// ask has the taker duplicate a descriptor. The code is the taker's answer, the error that there was none.
func (t *taker) ask(pidfd int, r request, wait time.Duration) (fd int, code unix.Errno, err error) {
	question, err := binary.Append(nil, binary.NativeEndian, r)
	if err != nil {
		return -1, 0, err
	}
	if err := unix.Sendmsg(t.socket, question, unix.UnixRights(pidfd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		return -1, 0, fmt.Errorf("cannot ask for a duplicate: %w", err)
	}
	if err := readable(t.socket, wait); err != nil {
		return -1, 0, err
	}
	answer, fd, err := receive(t.socket, unix.MSG_DONTWAIT)
	switch {
	case err != nil:
		return -1, 0, err
	case len(answer) != 4:
		return -1, 0, errors.New("the process that duplicates files has ended")
	}
	return fd, unix.Errno(binary.NativeEndian.Uint32(answer)), nil
}

// readable waits until a socket has something to read.
func readable(socket int, wait time.Duration) error {
	for end := time.Now().Add(wait); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}}, milliseconds(time.Until(end)))
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case !time.Now().Before(end):
			return fmt.Errorf("%w, and what it is now does not close within %v", errChanged, wait)
		}
	}
}

// hasChanged is how a taker says errChanged. pidfd_getfd has no such error.
const hasChanged = unix.ESTALE

// request asks for a duplicate of a descriptor of the process whose pidfd comes with it, if it is still this file.
type request struct {
	Number uint32
	Wanted identity
}

// Take is what a taker does until its socket closes: it receives requests and sends duplicates.
func Take(socket int) error {
	for {
		question, pidfd, err := receive(socket, 0)
		if err != nil || len(question) == 0 {
			return err
		}
		fd, code := take(pidfd, question)
		if code != 0 && fd >= 0 {
			unix.Close(fd) // may take for ever: the guard waits no longer than takerWait
			fd = -1
		}
		if err := reply(socket, fd, code); err != nil {
			return err
		}
	}
}

// take duplicates a descriptor and looks what it is.
func take(pidfd int, question []byte) (fd int, code unix.Errno) {
	if pidfd < 0 {
		return -1, unix.EINVAL
	}
	defer unix.Close(pidfd)
	var r request
	if _, err := binary.Decode(question, binary.NativeEndian, &r); err != nil {
		return -1, unix.EINVAL
	}
	fd, err := unix.PidfdGetfd(pidfd, int(r.Number), 0)
	if err != nil {
		errors.As(err, &code)
		return -1, code
	}
	var st unix.Statx_t
	if err := statx(fd, "", unix.AT_EMPTY_PATH, &st); err != nil || identityOf(&st) != r.Wanted {
		return fd, hasChanged
	}
	return fd, 0
}

// reply sends an answer, with a file unless that is -1, which it closes.
func reply(socket, fd int, code unix.Errno) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
		defer unix.Close(fd)
	}
	return unix.Sendmsg(socket, binary.NativeEndian.AppendUint32(nil, uint32(code)), rights, nil, unix.MSG_NOSIGNAL)
}

// receive receives a message and the file that came with it, or -1.
func receive(socket, flags int) (message []byte, fd int, err error) {
	message, rights := make([]byte, 64), make([]byte, unix.CmsgSpace(4))
	n, with := 0, 0
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		n, with, _, _, err = unix.Recvmsg(socket, message, rights, flags|unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return nil, -1, fmt.Errorf("cannot receive from socket: %w", err)
	}
	fd = -1
	messages, _ := unix.ParseSocketControlMessage(rights[:with])
	for i := range messages {
		if files, err := unix.ParseUnixRights(&messages[i]); err == nil && len(files) == 1 {
			fd = files[0]
		}
	}
	return message[:n], fd, nil
}
