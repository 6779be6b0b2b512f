// SPDX-License-Identifier: Apache-2.0

package take

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Tell writes a line into the standard error of a process, as a user. A process that does not take it in time is left.
func (t *Takers) Tell(pidfd int, text string, uid, gid uint32) {
	if err := t.Start(); err == nil {
		_, _, _ = t.current.ask(pidfd, request{Number: 2, Text: text, UID: uid, GID: gid}, tellWait)
	}
	t.Abandon(0) // lines are rare, and a taker that has written is the user's
}

// tell writes a line into another process's file, if it takes the line at once. The file may lead to any
// program, and the kernel can tell that program who writes. So root becomes the job's user first, for good.
func tell(fd int, r request) unix.Errno {
	var code unix.Errno
	var st unix.Statx_t
	if Statx(fd, "", unix.AT_EMPTY_PATH, &st) != nil || !shownAtOnce(&st) {
		return unix.ENOTTY
	}
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, _ := unix.Poll(ready, 0); n != 1 || ready[0].Revents&unix.POLLOUT == 0 {
		return unix.EAGAIN
	}
	if err := become(r.UID, r.GID); err != nil {
		return unix.EPERM
	}
	if _, err := unix.Write(fd, []byte(r.Text)); err != nil {
		errors.As(err, &code)
	}
	return code
}

// become gives all threads of this process to a user, if it is root's. No user may trace it afterwards, because it is
// not dumpable.
func become(uid, gid uint32) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := syscall.Setgroups([]int{}); err != nil {
		return err
	}
	if err := syscall.Setresgid(int(gid), int(gid), int(gid)); err != nil {
		return err
	}
	return syscall.Setresuid(int(uid), int(uid), int(uid))
}

// shownAtOnce reports whether a file is a pipe, a socket or a terminal of a user's session, or a regular file if this
// process is not root's.
func shownAtOnce(st *unix.Statx_t) bool {
	const firstTerminal, lastTerminal = 136, 143 // the major numbers of /dev/pts
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO, unix.S_IFSOCK:
		return true
	case unix.S_IFREG:
		return unix.Geteuid() != 0
	case unix.S_IFCHR:
		return st.Rdev_major >= firstTerminal && st.Rdev_major <= lastTerminal
	}
	return false
}
