// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// CUDA runs without MPS, and does not report it, if it does not find the daemon. A client of MPS shares pipes with its
// server (measured: docs/measurements/13-h200). A process without such pipes at two checks is outside of MPS.
const (
	verifyAfter = 2 * time.Second // after it has opened its files
	verifyAgain = 3 * time.Second // the process may still be connecting to the server
	// verifyLate is the time for each living client between two checks while the budget is spent, as for minutes after
	// many starts. A check beside 700 clients takes 80 ms of a slow processor.
	verifyLate = 500 * time.Millisecond
	// clientPipes is the minimum number of pipes that a client shares with its server (measured). One may be inherited.
	clientPipes = 4
	// maxOutside limits the list of processes outside of MPS.
	maxOutside = 64
)

// mayVerify returns when a client that is due may be checked.
func (g *Guard) mayVerify(now time.Time) time.Time {
	return earliest(g.budget.calm(now), g.verified.Add(verifyLate*time.Duration(len(g.living))))
}

// verifyClients checks whether the clients that are due use MPS.
func (g *Guard) verifyClients(now time.Time) {
	if now.Before(g.mayVerify(now)) {
		return
	}
	var servers map[string]bool
	var err error
	for _, c := range g.living {
		if c.verify.IsZero() || now.Before(c.verify) {
			continue
		}
		if servers == nil {
			servers, err = g.serverPipes()
			g.budget.busy = true
		}
		if err != nil { // without the pipes of all servers, a client is not known to be outside of MPS
			c.verify = now.Add(verifyAgain)
			continue
		}
		if g.verifyOne(c, servers, now); now.Before(g.mayVerify(now)) {
			return
		}
	}
}

func (g *Guard) verifyOne(c *client, servers map[string]bool, now time.Time) {
	c.verify, g.verified = time.Time{}, now
	if c.gpus == 0 { // a slow process opens its GPU after the scans that its memory device caused
		g.scans.by(now)
	}
	pipes, err := g.kernel.pipesOf(c.proc.PID, maxDescriptors)
	if errors.Is(err, proc.ErrSilent) {
		c.verify = now.Add(verifyAgain)
	}
	if err != nil || c.inherits() {
		return // the process has ended, or is a fork whose parent is checked, or does not answer
	}
	if maps.DeleteFunc(pipes, func(pipe string, _ bool) bool { return !servers[pipe] }); len(pipes) >= clientPipes {
		return
	}
	if !c.missed {
		c.missed, c.verify, c.parent = true, now.Add(verifyAgain), c.forkOf // isServer may have asked too early
		g.scans.by(now)
		return
	}
	found := lease.Outside{Proc: c.proc, Since: c.opened}
	g.background(func() func(time.Time) {
		found.Cause = g.causeOf(found.Proc)
		why := ""
		if g.Warnings.Outside != nil {
			why = g.Warnings.Outside(found.Proc)
		}
		return func(time.Time) { g.noteOutside(found, why) }
	})
}

// noteOutside records a process that was found outside of MPS, and tells it why, if the job is to know.
func (g *Guard) noteOutside(found lease.Outside, why string) {
	if c := g.living[found.Proc.PID]; why != "" && c != nil && c.proc == found.Proc {
		g.send(c, fmt.Sprintf("slurm-mps: process %d of this step computes without MPS: %s\n", found.Proc.PID, why))
	}
	g.logClient(Line{
		Warning: true, Message: "a process of the job has a GPU open and is not a client of its MPS daemon",
		Fields: []any{"pid", found.Proc.PID, "cause", found.Cause},
	})
	if len(g.state.Outside) < maxOutside {
		g.state.Outside = append(g.state.Outside, found)
	}
	g.state.OutsideSeen++
	g.changed = true
}

const (
	pipeVariable = "CUDA_MPS_PIPE_DIRECTORY" // tells CUDA where the daemon is
	jobVariable  = "SLURM_JOB_ID"
)

// checkJob reads the environment of a process that is in no job's control group, to find out whether the process
// belongs to another job. The job's user may have another job on the node, and its clients open all GPUs while they
// start.
func (g *Guard) checkJob(p proc.Process) {
	g.background(func() func(time.Time) {
		environment := proc.Variables(context.Background(), p, pipeVariable, jobVariable) // takes a second at most
		job, set := environment.Values[jobVariable]
		another := set && job != strconv.FormatUint(uint64(g.Job), 10) && !slices.Contains(g.Pipes, environment.Values[pipeVariable])
		return func(time.Time) {
			if c := g.living[p.PID]; another && c != nil && c.proc == p {
				g.dismiss(c)
			}
		}
	})
}

// causeOf returns the likely cause why a process did not find the daemon, and the repair. It uses the process's initial
// environment.
func (g *Guard) causeOf(p proc.Process) string {
	environment := proc.Variables(context.Background(), p, pipeVariable) // takes a second at most
	value, set := environment.Values[pipeVariable]
	switch {
	case environment.Err != nil:
		return "see that " + pipeVariable + " reaches it"
	case !set:
		return "it was started without " + pipeVariable + ": what starts it (a script, env -i, a container) must keep it"
	case !slices.Contains(g.Pipes, value):
		return "it was started with another " + pipeVariable + ": what starts it must keep the job's"
	}
	return "it changes " + pipeVariable + " itself, or its container has no such folder: mount /run/slurm-mps there"
}

// serverPipes returns the pipes of all servers, which are the daemons' children, or why those of one are not known.
func (g *Guard) serverPipes() (all map[string]bool, err error) {
	daemons := g.Daemons()
	all = map[string]bool{}
	listed := proc.EachPID(func(pid int) bool {
		if uid, ok := proc.Owner(pid); !ok || uid != g.UID && uid != 0 {
			return true
		}
		status, failed := proc.ReadStatus(pid)
		if failed != nil || !slices.ContainsFunc(daemons, func(d proc.Process) bool { return d.PID == status.Parent }) {
			return true
		}
		pipes, failed := g.kernel.pipesOf(pid, maxServerFiles)
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) && !errors.Is(failed, unix.ESRCH) {
			err = failed
		}
		maps.Copy(all, pipes)
		return true
	})
	return all, errors.Join(listed, err)
}

// maxServerFiles limits the descriptors that are read of a server, which has about 80 for each client.
const maxServerFiles = 16384
