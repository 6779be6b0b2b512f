// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/take"
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
		own, best := other.group == c.group, nearest != nil && nearest.group == c.group
		if nearest == nil || own && !best || own == best && other.proc.PID < nearest.proc.PID {
			nearest = other
		}
	}
	if nearest != nil {
		g.send(nearest, g.endText(c, count))
	}
}

// endText is the line about a client's end.
func (g *Guard) endText(c *client, neighbours int) string {
	name := g.names[c.proc]
	if name == "" {
		name = fmt.Sprintf("process %d", c.proc.PID)
	}
	link, where, gpus := "with ", "its GPU", []string{}
	if c.exit.raw&0x7f != 0 {
		link = "by "
	}
	for i, minor := range g.Minors {
		if c.gpus&(1<<i) != 0 {
			gpus = append(gpus, fmt.Sprintf("GPU %d", minor))
		}
	}
	if len(gpus) > 0 {
		where = strings.Join(gpus, " or ")
	}
	verb := "go"
	if neighbours == 1 {
		verb = "goes"
	}
	return fmt.Sprintf("slurm-mps: %s ended %s%s while %s had work; its %s %s on\n", name, link, c.exit, where, words.Count(neighbours, "neighbour"), verb)
}

// tellAll writes notices, one after the other, until there are no more. A process that does not take its line in time is
// left.
func (g *Guard) tellAll() {
	var t take.Takers
	g.setUp(&t)
	for n := range g.notices {
		t.Tell(n.pidfd, n.text, g.UID, g.GID)
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
