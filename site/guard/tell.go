// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// If a rank ends badly while its neighbours live, the job is told once: "rank 3 ended by signal 9 with work on GPU 0;
// its 3 neighbours go on". The guard is outside of the job and has no output there. So a taker writes the line into the
// standard error of one of the neighbours, which the launcher shows.
//
// A guard of root's writes to pipes, sockets and terminals only, because a file of the user's may delay the writer. The
// standard error of a program that no launcher has started is often a file. A guard of the user's writes there, too.

// maxTold limits the lines of a job.
const maxTold = 64

// notice is a line for the standard error of a process.
type notice struct {
	pidfd int // the notice's own
	text  string
}

// tellEnd tells the job that a client has ended badly, when it is known that its neighbours have outlived that.
func (g *Guard) tellEnd(c *client, s situation, now time.Time) {
	if c.announced || c.inOrder || !c.exit.known || !s.neighbours || now.Sub(c.died) < usage.HarmTime || !g.usage.workedAfter(c) {
		return
	}
	c.announced = true
	var nearest *client // of the launcher's own, if possible
	count := 0
	for _, other := range g.living {
		if other.inherits() || !shareGPU(c, other) {
			continue
		}
		count++
		if nearest == nil || other.nearer(nearest, c) {
			nearest = other
		}
	}
	if nearest != nil {
		g.send(nearest, g.endText(c, count))
	}
}

// nearer reports whether a client is to say how another one has ended, and not a third one.
func (c *client) nearer(than, dead *client) bool {
	if mine, best := c.group == dead.group, than.group == dead.group; mine != best {
		return mine
	}
	return c.proc.PID < than.proc.PID
}

// endText is the line about a client's end.
func (g *Guard) endText(c *client, neighbours int) string {
	name := g.names[c.proc]
	if name == "" {
		name = fmt.Sprintf("process %d", c.proc.PID)
	}
	link, where := "with ", "its GPU"
	if c.exit.raw&0x7f != 0 {
		link = "by "
	}
	if i := bits.TrailingZeros64(c.gpus); i < len(g.Minors) {
		where = fmt.Sprintf("GPU %d", g.Minors[i])
	}
	verb := "go"
	if neighbours == 1 {
		verb = "goes"
	}
	return fmt.Sprintf("slurm-mps: %s ended %s%s while %s had work; its %s %s on\n", name, link, c.exit, where, words.Count(neighbours, "neighbour"), verb)
}

// tellAll writes notices, one after the other, until there are no more. A process that does not take its line within a
// second is left.
func (g *Guard) tellAll() {
	t := takersOf(g.Options)
	for n := range g.notices {
		if err := t.start(); err == nil {
			_, _, _ = t.current.ask(n.pidfd, request{Number: 2, Text: n.text, UID: g.UID, GID: g.GID}, t.wait)
		}
		t.abandon(0) // lines are rare, and a taker that has written is the user's
		unix.Close(n.pidfd)
	}
}

// name learns the name of a new client from its environment, which the user can write and may delay.
func (g *Guard) name(p proc.Process) {
	if g.NameOf == nil {
		return
	}
	g.background(func() func(time.Time) {
		name := g.NameOf(p)
		return func(time.Time) {
			if name != "" && g.living[p.PID] != nil {
				g.names[p] = name
			}
		}
	})
}

// tell writes a line into a descriptor of another process, if it takes the line at once. The file may lead to any
// program, and the kernel can tell that program who writes. So root becomes the job's user first, for good.
func tell(pidfd int, r request) unix.Errno {
	var code unix.Errno
	fd, err := unix.PidfdGetfd(pidfd, r.Number, 0)
	if err != nil {
		errors.As(err, &code)
		return code
	}
	defer unix.Close(fd) // of another kind of file, this may take for ever
	var st unix.Statx_t
	if statx(fd, "", unix.AT_EMPTY_PATH, &st) != nil || !shownAtOnce(&st) {
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
