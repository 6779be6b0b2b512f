// SPDX-License-Identifier: Apache-2.0

// Package take duplicates files of other processes, in processes of its own: the takers. Between scan and duplication, a
// process may replace the file by any other file. If a user's file system delays that file's close, the kernel blocks the
// closing process with all of its files, even if it is killed. A taker gives its guard only files that it has checked.
package take

import (
	"cmp"
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
	"github.com/slurm-mps/slurm-mps/site/wait"
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
	// tellWait is the maximum time for a line. Its taker has to start first, which may take seconds on a busy machine.
	tellWait = 10 * time.Second
	// placeEvery is the time between two tries to get a place on the node, because a try reads all takers.
	placeEvery = time.Second
)

var (
	errStuck = errors.New("the job's user has put files in the place of device files, and they do not close")
	// ErrChanged means that a descriptor was another file when it was duplicated.
	ErrChanged = errors.New("the file has changed")
)

// Takers are the taker of a guard, and those that it has given up. While a process has made a taker hang, no other taker
// is asked about it. So each taker that hangs needs a process of its own. One goroutine uses it.
type Takers struct {
	// Line is the command line of a process that calls Run(0).
	Line []string
	// Raised says that this process has a high priority, and is not killed if the node is out of memory. A taker has
	// neither, because it may hang for long.
	Raised bool
	// Place takes a place among the node's takers; its place is nil if they are not counted.
	Place func() (*lease.TakerPlace, error)
	// Wait is how long an answer may take; 0 for takerWait.
	Wait time.Duration

	spent   time.Duration // of that, in this round, on answers that did not come
	refused error         // why there was no place
	again   time.Time     // the next try for a place is not before this time
	current *taker
	stuck   atomic.Int32 // abandoned takers that have not ended
	mutex   sync.Mutex
	about   map[int]int // abandoned takers, by the pid of the process that they were asked about
}

// Identity identifies a file. A character device is identified by its number, not by its path, because a container
// may have its own device file. Any other file is identified by its inode. On a simulated node, such files replace
// the devices.
type Identity struct {
	Device bool
	A, B   uint64
}

// IdentityOf returns the identity of a file.
func IdentityOf(st *unix.Statx_t) Identity {
	if st.Mode&unix.S_IFMT == unix.S_IFCHR {
		return Identity{true, uint64(st.Rdev_major), uint64(st.Rdev_minor)}
	}
	return Identity{false, uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), st.Ino}
}

// Statx reads a file's type and number. With AT_STATX_DONT_SYNC the kernel does not ask a user's file system.
func Statx(dir int, name string, flags int, st *unix.Statx_t) error {
	return unix.Statx(dir, name, flags|unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO, st)
}

// request asks a taker for a duplicate of a descriptor if it is still the wanted file. If there is a text, it asks the
// taker to write the text into the descriptor instead, as this user. The process's pidfd is sent with the request.
type request struct {
	Number   int
	Wanted   Identity
	Text     string // up to maxTextLine
	UID, GID uint32
}

const (
	// maxTextLine limits a line. A pipe takes a line of this length whole or not at all.
	maxTextLine = 256
	// maxMessage is above the length of a request in JSON, which may have six bytes for one of the text.
	maxMessage = 8 * maxTextLine
)

// taker is a process that runs Run.
type taker struct {
	socket  int
	process *proc.Child
	place   *lease.TakerPlace // among the node's takers, nil for none
}

// Begin begins a round of the guard.
func (t *Takers) Begin() { t.spent = 0 }

// Duplicate duplicates a descriptor of a process. It returns ErrChanged if the descriptor is no longer the wanted file,
// and proc.ErrSilent if the process has made a taker hang.
func (t *Takers) Duplicate(pid, pidfd, number int, wanted Identity) (fd int, err error) {
	if t.hangs(pid) {
		return -1, proc.ErrSilent
	}
	if err := t.Start(); err != nil {
		return -1, err
	}
	limit, began := max(t.limit()-t.spent, min(leastWait, t.limit())), time.Now()
	fd, code, err := t.current.ask(pidfd, request{Number: number, Wanted: wanted}, limit)
	switch {
	case err != nil: // no answer
		t.spent += time.Since(began)
		t.Abandon(pid)
		return -1, err
	case code == hasChanged:
		return -1, ErrChanged
	case code != 0:
		return -1, code
	case fd < 0: // the kernel drops the file if this process may not open another one
		return -1, unix.EMFILE
	}
	return fd, nil
}

// limit is how long an answer may take.
func (t *Takers) limit() time.Duration { return cmp.Or(t.Wait, takerWait) }

// PID is the pid of the present taker, 0 for none.
func (t *Takers) PID() int {
	if t.current == nil {
		return 0
	}
	return t.current.process.PID
}

// hangs reports whether a taker hangs that was asked about a process.
func (t *Takers) hangs(pid int) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.about[pid] > 0
}

// note counts an abandoned taker, or subtracts one that has ended.
func (t *Takers) note(pid, count int) {
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

// Start starts a taker, unless one runs.
func (t *Takers) Start() (err error) {
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
	if place, err = t.Place(); err != nil {
		t.refused, t.again = err, now.Add(placeEvery)
		return err
	}
	if t.current, err = startTaker(t.Line, place); err != nil {
		return err
	}
	if t.Raised {
		_ = proc.SetOOMScore(t.current.process.PID, 0)
	}
	return nil
}

// Abandon gives up the current taker, which ends when its file is closed. It was asked about a process, or about none:
// 0. A taker that waits for a process in the middle of an exec is ended by the signal.
func (t *Takers) Abandon(pid int) {
	if t.current == nil {
		return
	}
	old := t.current
	t.current = nil
	unix.Close(old.socket) // tells the taker to end
	old.process.End()
	if t.Raised && old.process.Running() {
		proc.SetNice(old.process.PID, 0) // the taker may hang for long
	}
	_ = old.place.Leave()
	t.note(pid, 1)
	go func() {
		<-old.process.Ended
		t.note(pid, -1)
	}()
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
func (t *taker) ask(pidfd int, r request, limit time.Duration) (fd int, code unix.Errno, err error) {
	if len(r.Text) > maxTextLine {
		r.Text = r.Text[:maxTextLine-1] + "\n"
	}
	question, _ := json.Marshal(r)
	if err := unix.Sendmsg(t.socket, question, unix.UnixRights(pidfd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		return -1, 0, fmt.Errorf("cannot ask for a duplicate: %w", err)
	}
	switch err := wait.Readable(t.socket, limit); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return -1, 0, fmt.Errorf("%w, and what it is now does not close within %v", ErrChanged, limit)
	case err != nil:
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

// hasChanged is the code for ErrChanged. pidfd_getfd does not return it.
const hasChanged = unix.ESTALE

// Run runs a taker: it receives requests and sends duplicates until its socket closes.
func Run(socket int) error {
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

// take duplicates a descriptor and checks its Identity.
func take(pidfd int, question []byte) (fd int, code unix.Errno) {
	if pidfd < 0 {
		return -1, unix.EINVAL
	}
	var r request
	if json.Unmarshal(question, &r) != nil {
		unix.Close(pidfd)
		return -1, unix.EINVAL
	}
	fd, err := unix.PidfdGetfd(pidfd, r.Number, 0)
	unix.Close(pidfd) // before anything that may take for ever
	if err != nil {
		errors.As(err, &code)
		return -1, code
	}
	if r.Text != "" {
		defer unix.Close(fd) // of another kind of file, this may take for ever
		return -1, tell(fd, r)
	}
	var st unix.Statx_t
	if err := Statx(fd, "", unix.AT_EMPTY_PATH, &st); err != nil || IdentityOf(&st) != r.Wanted {
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
