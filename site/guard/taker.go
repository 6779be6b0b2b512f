// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

const (
	// maxStuck limits the takers of one guard that hang because a user's file system does not close a file. The node
	// has limits, too: lease.TakerPlace.
	maxStuck = 8
	// takerWait is the maximum time for a taker's answer, and for all late answers of a round. On a node that is not
	// overloaded, an answer comes within a millisecond.
	takerWait = 300 * time.Millisecond
	// leastWait is the time for an answer if the round has no time left.
	leastWait = 25 * time.Millisecond
	// placeEvery is the time between two tries to get a place on the node, because a try reads all takers.
	placeEvery = time.Second
)

var (
	errStuck = errors.New("the job's user has put files in the place of device files, and they do not close")
	// errChanged means that a descriptor was another file when it was duplicated.
	errChanged = errors.New("the file has changed")
)

// takers duplicate clients' descriptors for the guard in a process of their own. Between scan and duplication, a
// process may replace the file by any other file. If a user's file system delays that file's close, the kernel blocks
// the closing process with all of its files, even if it is killed. A taker gives the guard only files that it has
// checked.
//
// While a process has made a taker hang, no other taker is asked about it. So each taker that hangs needs a process of
// its own.
type takers struct {
	line    []string      // the command line of a taker
	raised  bool          // as in Options
	wait    time.Duration // how long an answer may take
	spent   time.Duration // of that, in this round, on answers that did not come
	place   func() (*lease.TakerPlace, error)
	refused error     // why there was no place
	again   time.Time // the next try for a place is not before this time
	current *taker
	stuck   atomic.Int32 // abandoned takers that have not ended
	mutex   sync.Mutex
	about   map[int]int // abandoned takers, by the pid of the process that they were asked about
}

func takersOf(o Options) takers {
	return takers{line: o.Taker, raised: o.Raised, wait: takerWait, place: o.Record.TakerPlace}
}

// request asks a taker for a duplicate of a descriptor if it is still the wanted file. If there is a text, it asks the
// taker to write the text into the descriptor instead, as this user. The process's pidfd is sent with the request.
type request struct {
	Number   int
	Wanted   identity
	Text     string // up to maxTextLine
	UID, GID uint32
}

const (
	// maxTextLine limits a line. A pipe takes a line of this length whole or not at all.
	maxTextLine = 256
	// maxMessage is above the length of a request in JSON, which may have six bytes for one of the text.
	maxMessage = 8 * maxTextLine
)

// taker is a process that runs Take.
type taker struct {
	socket  int
	process *proc.Child
	place   *lease.TakerPlace // among the node's takers, nil for none
}

// begin begins a round of the guard.
func (t *takers) begin() { t.spent = 0 }

// duplicate duplicates a descriptor of a process. It returns errChanged if the descriptor is no longer the wanted file,
// and proc.ErrSilent if the process has made a taker hang.
func (t *takers) duplicate(pid, pidfd, number int, wanted identity) (fd int, err error) {
	if t.hangs(pid) {
		return -1, proc.ErrSilent
	}
	if err := t.start(); err != nil {
		return -1, err
	}
	wait, began := max(t.wait-t.spent, min(leastWait, t.wait)), time.Now()
	fd, code, err := t.current.ask(pidfd, request{Number: number, Wanted: wanted}, wait)
	switch {
	case err != nil: // no answer
		t.spent += time.Since(began)
		t.abandon(pid)
		return -1, err
	case code == hasChanged:
		return -1, errChanged
	case code != 0:
		return -1, code
	case fd < 0: // the kernel drops the file if this process may not open another one
		return -1, unix.EMFILE
	}
	return fd, nil
}

// hangs reports whether a taker hangs that was asked about a process.
func (t *takers) hangs(pid int) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.about[pid] > 0
}

// note counts an abandoned taker, or subtracts one that has ended.
func (t *takers) note(pid, count int) {
	t.stuck.Add(int32(count))
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.about == nil {
		t.about = map[int]int{}
	}
	if t.about[pid] += count; t.about[pid] == 0 {
		delete(t.about, pid)
	}
}

// start starts a taker, unless one runs.
func (t *takers) start() (err error) {
	if t.current != nil {
		return nil
	}
	if t.stuck.Load() >= maxStuck {
		return errStuck
	}
	var place *lease.TakerPlace
	now := time.Now()
	if now.Before(t.again) {
		return t.refused
	}
	if place, err = t.place(); err != nil {
		t.refused, t.again = err, now.Add(placeEvery)
		return err
	}
	if t.current, err = startTaker(t.line, place); err != nil {
		return err
	}
	if t.raised {
		_ = proc.SetOOMScore(t.current.process.PID, 0)
	}
	return nil
}

// abandon gives up the current taker, which ends when its file is closed. It was asked about a process, or about none:
// 0. A taker that waits for a process in the middle of an exec is ended by the signal.
func (t *takers) abandon(pid int) {
	if t.current == nil {
		return
	}
	old := t.current
	t.current = nil
	unix.Close(old.socket) // tells the taker to end
	old.process.End()
	if t.raised && old.process.Running() {
		lower(old.process.PID)
	}
	_ = old.place.Leave()
	t.note(pid, 1)
	go func() {
		<-old.process.Ended
		t.note(pid, -1)
	}()
}

// lower takes the guard's priority from a taker that may hang for long.
func lower(pid int) {
	proc.SetNice(pid, 0)
}

// startTaker starts a taker.
func startTaker(line []string, place *lease.TakerPlace) (*taker, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, place.Leave())
	}
	theirs := os.NewFile(uintptr(pair[1]), "taker")
	defer theirs.Close()
	// The taker answers on its standard input, because a start passes a file with another number only after
	// those before it. The lock of its place is its standard output.
	files := []*os.File{theirs}
	if place != nil {
		files = append(files, place.Descriptor())
	}
	process, err := proc.StartChild(line, false, files...)
	if err != nil {
		unix.Close(pair[0])
		return nil, errors.Join(err, place.Leave())
	}
	place.Started(process.Process)
	return &taker{pair[0], process, place}, nil
}

// ask makes the taker duplicate a descriptor. The code is the taker's answer; the error means that there was no answer.
func (t *taker) ask(pidfd int, r request, wait time.Duration) (fd int, code unix.Errno, err error) {
	if len(r.Text) > maxTextLine {
		r.Text = r.Text[:maxTextLine-1] + "\n"
	}
	question, err := json.Marshal(r)
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
	var r request
	if json.Unmarshal(question, &r) != nil {
		return -1, unix.EINVAL
	}
	if r.Text != "" {
		return -1, tell(pidfd, r)
	}
	fd, err := unix.PidfdGetfd(pidfd, r.Number, 0)
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
	message, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	n, size := 0, 0
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		n, size, _, _, err = unix.Recvmsg(socket, message, rights, flags|unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return nil, -1, fmt.Errorf("cannot receive from socket: %w", err)
	}
	fd = -1
	messages, _ := unix.ParseSocketControlMessage(rights[:size])
	for i := range messages {
		if files, err := unix.ParseUnixRights(&messages[i]); err == nil && len(files) == 1 {
			fd = files[0]
		}
	}
	return message[:n], fd, nil
}
