// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// events is the set of events that the guard waits for: openings that inotify reports, deaths of clients, and the order
// to stop. It waits in epoll, so an idle guard uses no processor time.
type events struct {
	epoll, wake    int        // descriptors
	inotify, lines int        // of the device files, and of the daemons' logs; both -1 if the kernel allows no watch
	mutex          sync.Mutex // of wake, which other goroutines use
	watched        map[string]bool
	early          seen            // what anyDied has collected
	running        context.Context // until the order to stop
	end            context.CancelFunc
}

// seen is the result of one wait.
type seen struct {
	opened, stopped bool  // opened: a file of the driver, or a line in a daemon's log
	line            bool  // a line in a daemon's log
	any             bool  // something has ended the wait
	died            []int // pids
}

func openEvents() (*events, error) {
	e := &events{watched: map[string]bool{}}
	e.running, e.end = context.WithCancel(context.Background())
	var err1, err2, err3, err4 error
	e.epoll, err1 = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	e.wake, err2 = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	e.inotify, err3 = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	e.lines, err4 = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	err := cmp.Or(err1, err2)
	if err == nil {
		err = e.add(e.wake, 0, 0)
	}
	if err != nil {
		e.close()
		return nil, fmt.Errorf("cannot wait for events: %w", err)
	}
	if err3 != nil || err4 != nil { // fs.inotify.max_user_instances is used up: the guard then scans at fixed intervals
		if err3 == nil {
			unix.Close(e.inotify)
		}
		e.inotify, e.lines = -1, -1
		return e, nil
	}
	return e, errors.Join(e.add(e.inotify, 0, unix.EPOLLONESHOT), e.add(e.lines, 0, unix.EPOLLONESHOT))
}

// follow makes the death of a process end one wait, which returns the pid. A death comes once, so the event does, too: a
// pidfd of a dead process is ready for ever.
func (e *events) follow(pidfd, pid int) error { return e.add(pidfd, pid, unix.EPOLLONESHOT) }

// unfollow closes a pidfd. Its event would otherwise live as long as any duplicate, which a taker may have for as long as
// a user's file system likes.
func (e *events) unfollow(pidfd int) {
	_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_DEL, pidfd, nil)
	unix.Close(pidfd)
}

// add makes a ready descriptor end a wait. The wait returns the pid if the descriptor is a pidfd.
func (e *events) add(fd, pid int, flags uint32) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | flags, Fd: int32(fd), Pad: int32(pid)}
	if err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("cannot wait for descriptor %d: %w", fd, err)
	}
	return nil
}

// rearm makes the next opening and the next line end a wait. One of each is enough until the scan that it causes. An
// opening may cause a scan much later than a line, so it must not hide a line.
func (e *events) rearm() {
	for _, fd := range []int{e.inotify, e.lines} {
		if fd >= 0 {
			event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd)}
			_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_MOD, fd, &event)
		}
	}
}

// watch adds an inotify watch of a device file or of a log folder, unless there is one.
func (e *events) watch(path string, mask uint32) error {
	if e.watched[path] {
		return nil
	}
	if e.inotify < 0 {
		return fmt.Errorf("cannot watch %s: no inotify instance is left: raise fs.inotify.max_user_instances", path)
	}
	fd := e.inotify
	if mask&unix.IN_ONLYDIR != 0 {
		fd = e.lines
	}
	if _, err := unix.InotifyAddWatch(fd, path, mask); err != nil {
		return fmt.Errorf("cannot watch %s: %w", path, err)
	}
	e.watched[path] = true
	return nil
}

// wait waits for an event, until a given time.
func (e *events) wait(until time.Time) seen {
	s := e.early
	e.early = seen{}
	timeout := wait.Milliseconds(time.Until(until))
	if s.any { // anyDied has taken what would end the wait
		timeout = 0
	}
	e.collect(&s, timeout)
	s.stopped = e.running.Err() != nil
	return s
}

// anyDied reports at once whether a client has died. The next wait returns the deaths.
func (e *events) anyDied() bool {
	e.collect(&e.early, 0)
	return len(e.early.died) > 0
}

// collect adds the events of some milliseconds at most.
func (e *events) collect(s *seen, timeout int) {
	var ready [512]unix.EpollEvent // as many deaths in one turn
	n, _ := unix.EpollWait(e.epoll, ready[:], timeout)
	n = max(n, 0) // EINTR
	s.any = s.any || n > 0
	for _, event := range ready[:n] {
		switch int(event.Fd) {
		case e.wake:
			var count [8]byte
			_, _ = unix.Read(e.wake, count[:])
		case e.inotify:
			s.opened = true
			drain(e.inotify)
		case e.lines:
			s.opened, s.line = true, true
			drain(e.lines)
		default:
			if pid := int(event.Pad); !slices.Contains(s.died, pid) {
				s.died = append(s.died, pid)
			}
		}
	}
}

// drain discards inotify's events. The guard needs no more than their occurrence, so nothing is lost if a user has
// filled the queue.
func drain(inotify int) {
	var buffer [8192]byte
	for range 64 {
		if n, err := unix.Read(inotify, buffer[:]); n <= 0 || err != nil {
			return
		}
	}
}

func (e *events) stop() {
	e.end()
	e.nudge()
}

// rest waits for a time, and for no event but the order to stop.
func (e *events) rest(d time.Duration) { wait.Sleep(e.running, d) }

// nudge ends a wait. After close it does nothing, because another file may have the number then.
func (e *events) nudge() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.wake >= 0 {
		_, _ = unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (e *events) close() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for _, fd := range []int{e.epoll, e.wake, e.inotify, e.lines} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	e.wake = -1
}
