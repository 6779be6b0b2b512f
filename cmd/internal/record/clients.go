// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// client is a process of the job that is or was a client of MPS.
type client struct {
	usage.Event
	environment clientenv.Environment
	program     string
	listed      uint64      // bit n: the driver lists the client on the job's n-th GPU
	peaks       map[int]int // MiB by GPU
	faulted     bool
	stayed      bool // it still lived when the job ended
}

func (c *client) lives() bool { return c.End.IsZero() }

func (c *client) bad() bool { return !c.lives() && usage.BadEnd(c.Exit, c.Ending) }

// gpus returns the GPUs of a client, as bits. If the driver has listed the client, the list counts, because cuInit
// opens all GPUs that a client sees.
func (c *client) gpus() uint64 {
	if c.listed != 0 {
		return c.listed
	}
	return c.GPUs
}

// clients are the clients of a job. The latest usage.MaxClients of them are kept, and the living before the ended.
type clients struct {
	all        []*client
	others     map[site.Process]bool // living clients without room in all, which are only counted
	seen, peak int
	bad        int // bad ends of clients that are no longer in all
	read       func(pid int) clientenv.Environment
}

func (cs *clients) find(matches func(*client) bool) *client {
	i := slices.IndexFunc(cs.all, matches)
	if i < 0 {
		return nil
	}
	return cs.all[i]
}

// tell takes an event of the guard about a client.
func (cs *clients) tell(e usage.Event) {
	c := cs.find(func(c *client) bool { return c.Proc == e.Proc })
	switch {
	case e.NoClient:
		if c != nil || cs.others[e.Proc] {
			cs.all = slices.DeleteFunc(cs.all, func(other *client) bool { return other == c })
			delete(cs.others, e.Proc)
			cs.seen--
		}
		return
	case c == nil:
		c = cs.admit(e)
	}
	cs.peak = max(cs.peak, cs.living())
	if c == nil {
		return
	}
	c.Event = e
	switch {
	case c.lives():
	case c.faulted:
		c.Ending = usage.Faulted
	case c.stayed:
		c.Ending = usage.AtEpilog
	}
	cs.peak = max(cs.peak, cs.living())
}

// admit adds a client. If there is no room, the oldest client that has ended is removed. If all live, the new client
// is only counted, once, and admit returns nil.
func (cs *clients) admit(e usage.Event) *client {
	if !cs.others[e.Proc] {
		cs.seen++
	}
	if len(cs.all) >= usage.MaxClients {
		i := slices.IndexFunc(cs.all, func(c *client) bool { return !c.lives() })
		if i < 0 {
			cs.count(e)
			return nil
		}
		if cs.all[i].bad() {
			cs.bad++
		}
		cs.all = slices.Delete(cs.all, i, i+1)
	}
	delete(cs.others, e.Proc)
	c := &client{Event: e, environment: cs.read(e.Proc.PID), program: clientenv.Command(e.Proc.PID), peaks: map[int]int{}}
	cs.all = append(cs.all, c)
	return c
}

// count keeps a client without room among the living until its end.
func (cs *clients) count(e usage.Event) {
	if !e.End.IsZero() {
		delete(cs.others, e.Proc)
		return
	}
	if cs.others == nil {
		cs.others = map[site.Process]bool{}
	}
	cs.others[e.Proc] = true
}

// badEnds counts the clients that ended badly.
func (cs *clients) badEnds() int {
	n := cs.bad
	for _, c := range cs.all {
		if c.bad() {
			n++
		}
	}
	return n
}

func (cs *clients) living() (n int) {
	n = len(cs.others)
	for _, c := range cs.all {
		if c.lives() {
			n++
		}
	}
	return n
}

// onGPU takes the driver's list of a GPU's clients, and returns how many of them still run.
func (cs *clients) onGPU(gpu int, memory map[int]int, now time.Time) (living int) {
	pids := slices.Collect(maps.Keys(memory))
	for i, stat := range proc.ReadStats(context.Background(), pids) {
		pid := pids[i]
		c := cs.find(func(c *client) bool { return c.Proc.PID == pid && c.lives() })
		switch {
		case errors.Is(stat.Err, proc.ErrSilent) && c != nil: // it is in the middle of an exec, and still there
		case stat.Err != nil || !stat.Running():
			continue // the guard holds the files of a dead client
		case c == nil || c.Proc != stat.Process:
			c = cs.admit(usage.Event{Proc: stat.Process, Begin: now})
		}
		living++
		if c == nil {
			continue
		}
		mib := memory[pid]
		c.listed |= 1 << gpu
		c.peaks[gpu] = max(c.peaks[gpu], mib)
	}
	cs.peak = max(cs.peak, cs.living())
	return living
}

// endGone sets the end of clients that are gone, if the guard has not reported their end.
func (cs *clients) endGone(now time.Time) {
	var lived []site.Process
	for _, c := range cs.all {
		if c.lives() {
			lived = append(lived, c.Proc)
		}
	}
	left := map[site.Process]bool{}
	for _, p := range proc.Left(slices.AppendSeq(lived, maps.Keys(cs.others))) {
		left[p] = true
	}
	for _, c := range cs.all {
		if c.lives() && !left[c.Proc] {
			c.End = now
		}
	}
	maps.DeleteFunc(cs.others, func(p site.Process, _ bool) bool { return !left[p] })
}

// stay marks the clients that live at the end of the job.
func (cs *clients) stay() {
	for _, c := range cs.all {
		c.stayed = c.lives()
	}
}

// fault marks the clients that lived on a GPU at a fatal error.
func (cs *clients) fault(gpus uint64, when time.Time) {
	for _, c := range cs.all {
		if c.gpus()&gpus == 0 || c.Begin.After(when) || !c.lives() && c.End.Before(when) {
			continue
		}
		if c.faulted = true; !c.lives() {
			c.Ending = usage.Faulted
		}
	}
}

// rows returns the clients in the form of a report: a row for each client and GPU, the latest usage.MaxClients of them.
func (cs *clients) rows(gpus []lease.TicketDevice, ceiling policy.Percent) []usage.Client {
	rows := []usage.Client{}
	for _, c := range cs.all {
		bits := c.gpus()
		switch {
		case bits == 0 && len(gpus) == 1:
			bits = 1
		case bits == 0:
			rows = append(rows, c.row(-1))
		}
		for n, gpu := range gpus {
			if bits&(1<<n) == 0 {
				continue
			}
			row := c.row(n)
			if c.environment.Unknown == "" {
				row.SMs = shareOf(c.environment, gpu.Device, ceiling)
				row.LimitMiB, _ = c.environment.MemoryMiB(gpu.UUID)
			}
			rows = append(rows, row)
		}
	}
	return rows[max(len(rows)-usage.MaxClients, 0):]
}

// row returns a client's row for a GPU, without its limits.
func (c *client) row(gpu int) usage.Client {
	return usage.Client{
		PID: c.Proc.PID, GPU: gpu, Rank: c.environment.Rank, Step: c.environment.Step, Program: c.program, PeakMiB: c.peaks[gpu],
		Begin: c.Begin, End: c.End, Exit: c.Exit, Ending: c.Ending, Unharmed: c.Unharmed, SMs: -1,
	}
}

// shareOf returns a client's share of a GPU in SMs. 0 is the whole GPU.
func shareOf(environment clientenv.Environment, gpu site.Device, ceiling policy.Percent) int {
	if sms := environment.SMs(policy.GPU{SMs: gpu.SMs, SMsPerTPC: max(gpu.TPC, 1)}, ceiling); sms < gpu.SMs {
		return sms
	}
	return 0
}
