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
	// maxStuck limits the takers that hang because a user's file system does not close a file.
	maxStuck = 8
	// takerWait is the maximum time for a taker's answer. On a node that is not overloaded, an answer comes within a
	// millisecond.
	takerWait = time.Second
)

var (
	errStuck = errors.New("the job's user has put files in the place of device files, and they do not close")
	// errChanged means that a descriptor was another file when it was duplicated.
	errChanged = errors.New("the file has changed")
)

// takers duplicate clients' descriptors for the guard in a process of their own. Between look and duplication, a
// process may replace the file by any other file. If a user's file system delays that file's close, the kernel blocks
// the closing process with all of its files, even if it is killed. A taker gives the guard only files that it has
// checked.
type takers struct {
	line    []string      // the command line of a taker
	wait    time.Duration // how long an answer may take
	current *taker
	stuck   atomic.Int32 // abandoned takers that have not ended
}

// taker is a process that runs Take.
type taker struct {
	socket  int
	process *os.Process
}

// duplicate duplicates a descriptor of the process of a pidfd. It returns errChanged if the descriptor is no longer the
// wanted file.
func (t *takers) duplicate(pidfd, number int, wanted identity) (fd int, err error) {
	if err := t.start(); err != nil {
		return -1, err
	}
	fd, code, err := t.current.ask(pidfd, request{Number: uint32(number), Wanted: wanted}, t.wait)
	switch {
	case err != nil: // no answer
		t.abandon()
		return -1, err
	case code == hasChanged:
		return -1, errChanged
	case code != 0:
		return -1, code
	}
	return fd, nil
}

// start starts a taker, unless one runs.
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

// abandon gives up the current taker, which ends when its file is closed.
func (t *takers) abandon() {
	if t.current == nil {
		return
	}
	unix.Close(t.current.socket) // tells the taker to end
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
	// The taker answers on its standard input, because os.StartProcess passes a file with another number only after
	// those before it.
	process, err := os.StartProcess(line[0], line, &os.ProcAttr{Dir: "/", Env: []string{}, Files: []*os.File{theirs}})
	if err != nil {
		unix.Close(pair[0])
		return nil, err
	}
	return &taker{pair[0], process}, nil
}

// ask makes the taker duplicate a descriptor. The code is the taker's answer; the error means that there was no answer.
func (t *taker) ask(pidfd int, r request, wait time.Duration) (fd int, code unix.Errno, err error) {
	question, err := r.encode()
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

// readable waits until a socket can be read.
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

// hasChanged is the code for errChanged. pidfd_getfd does not return it.
const hasChanged = unix.ESTALE

// Take runs a taker: it receives requests and sends duplicates until its socket closes.
func Take(socket int) error {
	for {
		question, pidfd, err := receive(socket, 0)
		if err != nil || len(question) == 0 {
			return err
		}
		fd, code := take(pidfd, question)
		if code != 0 && fd >= 0 {
			unix.Close(fd) // may take for ever; the guard waits only for takerWait
			fd = -1
		}
		if err := reply(socket, fd, code); err != nil {
			return err
		}
	}
}

// take duplicates a descriptor and checks its identity.
func take(pidfd int, question []byte) (fd int, code unix.Errno) {
	if pidfd < 0 {
		return -1, unix.EINVAL
	}
	defer unix.Close(pidfd)
	r, err := decodeRequest(question)
	switch {
	case err != nil:
		return -1, unix.EINVAL
	case r.Text != "":
		return -1, tell(pidfd, int(r.Number), []byte(r.Text))
	}
	fd, err = unix.PidfdGetfd(pidfd, int(r.Number), 0)
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

// reply sends an answer, and a file unless fd is -1. It closes the file.
func reply(socket, fd int, code unix.Errno) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
		defer unix.Close(fd)
	}
	return unix.Sendmsg(socket, binary.NativeEndian.AppendUint32(nil, uint32(code)), rights, nil, unix.MSG_NOSIGNAL)
}

// receive receives a message and the file sent with it, or -1.
func receive(socket, flags int) (message []byte, fd int, err error) {
	message, rights := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
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
