// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// Warnings are Options about processes that the guard cannot help. Each may take a second. Without them, the job is
// told of a process only if that has the memory device open for certain.
type Warnings struct {
	// Unguarded reports whether the job is told that a process cannot be guarded. If it is not certain that the process
	// uses CUDA, Unguarded is asked again and again.
	Unguarded func(p proc.Process, why error, certain bool) bool
	// Outside returns why a process of these ranks computes without MPS, "" for a process of others.
	Outside func(proc.Process) string
}

const (
	// The time until a process that may use CUDA is looked at again. It doubles.
	firstAsk, lastAsk = 50 * time.Millisecond, time.Minute
	// maxAsked limits the processes that are looked at again.
	maxAsked = 64
)

// warnUnguarded tells the job once for each cause that a process cannot be guarded.
func (g *Guard) warnUnguarded(pid int, why error, certain bool) {
	if g.Warnings.Unguarded == nil {
		if certain {
			g.warnNeighbour(pid, why)
		}
		return
	}
	stat, err := g.kernel.stat(pid)
	if err != nil || len(g.asked) >= maxAsked || g.asked[pid] || g.logged[causeText(why)] {
		return
	}
	g.asked[pid] = true
	go func() {
		for pause := firstAsk; stat.Process.Running(); pause = min(2*pause, lastAsk) {
			if g.Warnings.Unguarded(stat.Process, why, certain) && g.inTurn(func() bool { return g.warnNeighbour(pid, why) }) {
				break
			}
			time.Sleep(pause)
		}
		g.inTurn(func() bool { delete(g.asked, pid); return true })
	}()
}

// inTurn runs a function in the guard's goroutine. It returns false if the guard does not come to it.
func (g *Guard) inTurn(act func() bool) bool {
	done := make(chan bool, 1)
	select {
	case g.results <- func(time.Time) { done <- act() }:
	default:
		return false
	}
	g.events.nudge()
	select {
	case result := <-done:
		return result
	case <-time.After(lastAsk):
		return false
	}
}

// warnNeighbour tells one of the clients that a process cannot be guarded, once for each cause. Without another client,
// no one is harmed, and it reports false.
func (g *Guard) warnNeighbour(pid int, why error) bool {
	cause := causeText(why)
	for _, c := range g.living {
		if c.proc.PID == pid || c.inherits() {
			continue
		}
		if !g.logged[cause] {
			g.logged[cause] = true
			g.send(c, fmt.Sprintf("slurm-mps: cannot guard process %d, because %s: its end may kill its neighbours\n", pid, cause))
		}
		return true
	}
	return false
}

// causeText is the cause in words of a user.
func causeText(why error) string {
	switch {
	case errors.Is(why, fs.ErrPermission):
		return "the kernel lets only root see its files"
	case errors.Is(why, unix.EMFILE) || errors.Is(why, unix.ENFILE):
		return "the guard has too many files open (raise ulimit -n)"
	}
	return words.OneLine(why)
}

// send queues a line for the standard error of a client. The job gets maxTold lines at most.
func (g *Guard) send(c *client, text string) {
	if g.told >= maxTold {
		return
	}
	pidfd, err := g.kernel.filesOf(c)
	if err != nil {
		return
	}
	g.told++
	select {
	case g.notices <- notice{pidfd, text}:
	default: // the output of an earlier one is slow
		unix.Close(pidfd)
	}
}
