// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"maps"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
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
	outside     bool // its environment is known and names none of the daemons
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

// clients are the clients of a job that the guard has reported: the latest usage.MaxClients of them, and the living
// before the ended.
type clients struct {
	all     []*client
	gone    []tally // of clients that are no longer in all
	read    func(pid int) clientenv.Environment
	daemons []lease.Daemon
}

// tally counts clients of a job.
type tally struct {
	job       uint32
	seen, bad int
}

// anyJob is the number of no job: its clients are those of all jobs.
const anyJob = 0

// of reports whether a client belongs to a job. A client whose job is not known belongs to each. Its user can write the
// number, but only jobs of one user have a daemon together.
func (c *client) of(job uint32) bool {
	return job == anyJob || c.environment.Job == 0 || c.environment.Job == job
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
	if e.NoClient {
		cs.all = slices.DeleteFunc(cs.all, func(other *client) bool { return other == c })
		return
	}
	if c == nil && e.Ending == "" { // the last event of a client that has made room for others is not a new client
		c = cs.admit(e)
	}
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
}

// admit adds a client in place of the oldest client that has ended, if there is no other room. If all live, admit
// returns nil: MPS serves fewer clients on the GPUs of a node.
func (cs *clients) admit(e usage.Event) *client {
	if len(cs.all) >= usage.MaxClients {
		i := slices.IndexFunc(cs.all, func(c *client) bool { return !c.lives() })
		if i < 0 {
			return nil
		}
		cs.drop(i)
	}
	c := &client{Event: e, environment: cs.read(e.Proc.PID), program: clientenv.Command(e.Proc.PID), peaks: map[int]int{}}
	serves := func(d lease.Daemon) bool { return d.PipeDir == c.environment.Pipes }
	c.outside = len(cs.daemons) > 0 && c.environment.Unknown == "" && !slices.ContainsFunc(cs.daemons, serves)
	cs.all = append(cs.all, c)
	return c
}

// maxTallies limits the jobs that are told apart when their clients are gone, because a user can write any number. The
// clients of further jobs count as the first one's.
const maxTallies = 64

// drop removes a client that has ended, and counts it.
func (cs *clients) drop(i int) {
	c := cs.all[i]
	cs.all = slices.Delete(cs.all, i, i+1)
	full := len(cs.gone) == maxTallies
	n := slices.IndexFunc(cs.gone, func(t tally) bool { return t.job == c.environment.Job || full })
	if n < 0 {
		n, cs.gone = len(cs.gone), append(cs.gone, tally{job: c.environment.Job})
	}
	cs.gone[n].seen++
	if c.bad() {
		cs.gone[n].bad++
	}
}

// count returns how many clients a job has had, and how many of them ended badly.
func (cs *clients) count(job uint32) (seen, bad int) {
	for _, t := range cs.gone {
		if (&client{environment: clientenv.Environment{Job: t.job}}).of(job) {
			seen, bad = seen+t.seen, bad+t.bad
		}
	}
	for _, c := range cs.all {
		if !c.of(job) {
			continue
		}
		if seen++; c.bad() {
			bad++
		}
	}
	return seen, bad
}

// peak returns how many clients of a job lived at the same time, at most.
func (cs *clients) peak(job uint32) (most int) {
	for _, c := range cs.all {
		n := 0
		for _, other := range cs.all {
			lived := !other.Begin.After(c.Begin) && (other.lives() || other.End.After(c.Begin))
			if lived && c.of(job) && other.of(job) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// shards returns the most shards that a client of a job has in its environment, and whether the environment of one is
// known. A step may have fewer shards than its job.
func (cs *clients) shards(job uint32) (n int, known bool) {
	for _, c := range cs.all {
		if c.environment.Job == job {
			n, known = max(n, c.environment.Shards), true
		}
	}
	return n, known
}

// onGPU takes the driver's list of a GPU's clients, and returns how many clients of the job are on it. A dead client is
// listed while the guard holds its files.
func (cs *clients) onGPU(gpu int, memory map[int]int) (living int) {
	for _, c := range cs.all {
		mib, listed := memory[c.Proc.PID]
		if !listed || !c.lives() {
			continue
		}
		living++
		c.listed |= 1 << gpu
		c.peaks[gpu] = max(c.peaks[gpu], mib)
	}
	return living
}

// memory returns the memory of a job's clients on a GPU, and how many of them live. Dead clients whose files are held
// have their memory.
func (cs *clients) memory(job uint32, memory map[int]int) (mib, living int) {
	for _, c := range cs.all {
		used, listed := memory[c.Proc.PID]
		if !listed || !c.of(job) || !c.lives() && c.Ending != "" {
			continue
		}
		if mib += used; c.lives() {
			living++
		}
	}
	return mib, living
}

// endGone sets the end of clients that are gone, if the guard has not reported their end.
func (cs *clients) endGone(now time.Time) {
	lived := map[proc.Process]*client{}
	for _, c := range cs.all {
		if c.lives() {
			lived[c.Proc] = c
		}
	}
	for _, p := range proc.Left(slices.Collect(maps.Keys(lived))) {
		delete(lived, p)
	}
	for _, c := range lived {
		c.End = now
	}
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

// rows returns a job's clients in the form of a report: a row for each client and GPU, the latest usage.MaxClients of
// them.
func (cs *clients) rows(job uint32, gpus []lease.TicketDevice, ceiling policy.Percent) []usage.Client {
	rows := []usage.Client{}
	for _, c := range cs.all {
		bits := c.gpus()
		switch {
		case !c.of(job):
			continue
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
				row.SMs = c.environment.SMs(policy.GPU{SMs: gpu.SMs, SMsPerTPC: max(gpu.TPC, 1)}, ceiling)
				row.LimitMiB, _ = c.environment.MemoryMiB(gpu.UUID)
			}
			if row.SMs >= gpu.SMs {
				row.SMs = 0 // the whole GPU
			}
			rows = append(rows, row)
		}
	}
	return rows[max(len(rows)-usage.MaxClients, 0):]
}

// row returns a client's row for a GPU, without its limits.
func (c *client) row(gpu int) usage.Client {
	return usage.Client{
		PID: c.Proc.PID, GPU: gpu, Rank: c.environment.Rank, Step: c.environment.Step, Program: c.program,
		Outside: c.outside && c.bad(), // of others, the guard knows by their pipes
		PeakMiB: c.peaks[gpu], Begin: c.Begin, End: c.End, Exit: c.Exit, Ending: c.Ending, Unharmed: c.Unharmed, SMs: -1,
	}
}
