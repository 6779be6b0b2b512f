// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// events is what the guard sleeps on: openings that inotify tells of, deaths of clients, and the order to stop. It sleeps in
// epoll, so an idle guard does nothing.
type events struct {
	epoll, inotify, wake int
	watched              map[string]bool
	stopping             atomic.Bool
}

// seen is what has happened.
type seen struct {
	opened, stopped bool
	died            []int // pids
}

func openEvents() (*events, error) {
	e := &events{watched: map[string]bool{}}
	var err1, err2, err3 error
	e.epoll, err1 = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	e.wake, err2 = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	e.inotify, err3 = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("cannot wait for events: epoll: %w, eventfd: %w", err1, err2)
	}
	if err := e.add(e.wake, 0, 0); err != nil {
		return nil, err
	}
	if err3 != nil { // fs.inotify.max_user_instances is used up: the guard looks without a reason, then
		e.inotify = -1
		return e, nil
	}
	return e, e.add(e.inotify, 0, unix.EPOLLONESHOT)
}

// add has a descriptor's readiness end a wait. The pid is told when it is a pidfd.
func (e *events) add(fd, pid int, flags uint32) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | flags, Fd: int32(fd), Pad: int32(pid)}
	if err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("cannot wait for descriptor %d: %w", fd, err)
	}
	return nil
}

// rearm has the next opening end a wait. One opening is enough until the look that it is a reason for.
func (e *events) rearm() {
	if e.inotify >= 0 {
		event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(e.inotify)}
		_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_MOD, e.inotify, &event)
	}
}

// watch has inotify tell of a path. A path that is watched already stays so.
func (e *events) watch(path string, mask uint32) error {
	if e.watched[path] {
		return nil
	}
	if e.inotify < 0 {
		return fmt.Errorf("cannot watch %s: no inotify instance is left: raise fs.inotify.max_user_instances", path)
	}
	if _, err := unix.InotifyAddWatch(e.inotify, path, mask); err != nil {
		return fmt.Errorf("cannot watch %s: %w", path, err)
	}
	e.watched[path] = true
	return nil
}

// watches reports whether events tell of openings.
func (e *events) watches() bool { return len(e.watched) > 0 }

// wait sleeps until something happens, or until a time.
func (e *events) wait(until time.Time) (s seen) {
	var ready [64]unix.EpollEvent
	n, err := unix.EpollWait(e.epoll, ready[:], milliseconds(time.Until(until)))
	if err != nil {
		n = 0 // EINTR
	}
	for _, event := range ready[:n] {
		switch int(event.Fd) {
		case e.wake:
			var count [8]byte
			_, _ = unix.Read(e.wake, count[:])
		case e.inotify:
			s.opened = true
			e.drain()
		default:
			s.died = append(s.died, int(event.Pad))
		}
	}
	s.stopped = e.stopping.Load()
	return s
}

// milliseconds rounds up, so that no wait ends just before its time.
func milliseconds(d time.Duration) int {
	return int(max(0, (d+time.Millisecond-1)/time.Millisecond))
}

// drain drops what inotify tells. That something has happened is all that counts, so a queue that a user has filled loses
// nothing.
func (e *events) drain() {
	var buffer [8192]byte
	for range 64 {
		if n, err := unix.Read(e.inotify, buffer[:]); n <= 0 || err != nil {
			return
		}
	}
}

func (e *events) stop() {
	e.stopping.Store(true)
	e.nudge()
}

// nudge ends a wait.
func (e *events) nudge() { _, _ = unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (e *events) close() {
	for _, fd := range []int{e.epoll, e.wake, e.inotify} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
