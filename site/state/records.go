// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// readRecords reads the records: the jobs with a lease, and the files without one.
func (r *Reader) readRecords(n *Node) {
	leased, err1 := r.Store.Jobs()
	tickets, err2 := r.Store.Tickets()
	dirs, err3 := r.Store.Dirs()
	locked, err4 := r.Store.LockedJobs()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		n.missed("the records: %v", err)
	}
	if r.Root {
		var err error
		if n.takers, err = r.Store.TakersLeft(); err != nil {
			n.missed("the processes of guards: %v", err)
		}
		if n.busy, err = r.Store.BusyLeft(); err != nil {
			n.missed("the file systems of closed jobs: %v", err)
		}
	}
	var hidden, acting []uint32
	for _, job := range r.readJobs(leased, tickets, dirs, locked) {
		switch {
		case job.hidden() && job.Acting != 0:
			acting = append(acting, job.ID)
		case job.hidden():
			hidden = append(hidden, job.ID)
		case job.leased || job.dir || job.ticketed(): // others vanished while they were read, or are of another boot
			n.Jobs = append(n.Jobs, job)
		}
	}
	n.hidden = slices.Concat(acting, hidden)
	n.sign()
	if len(acting) > 0 {
		n.missed("the leases of jobs on which a prolog or an epilog works: root's to read (%s)", jobList(acting))
	}
	if len(hidden) > 0 {
		n.missed("the leases of other users: root's to read (%s)", jobList(hidden))
	}
}

func (n *Node) sign() {
	var b strings.Builder
	for _, j := range n.Jobs {
		fmt.Fprintf(&b, "%d %s %d %d %t %t %t %t", j.ID, j.Phase, j.Joined, j.Acting, j.leased, j.dir, j.ticket != nil, j.err != nil)
		for _, d := range j.Daemons {
			fmt.Fprintf(&b, " %d", d.PID)
		}
		b.WriteByte('\n')
	}
	n.records = b.String()
}

func (j Job) hidden() bool {
	return j.ticket == nil && (errors.Is(j.err, fs.ErrPermission) || errors.Is(j.ticketErr, fs.ErrPermission))
}

// ticketed reports whether a job has a ticket of this boot, readable or not.
func (j Job) ticketed() bool {
	return j.ticket != nil || !errors.Is(j.ticketErr, lease.ErrNotFound) && !errors.Is(j.ticketErr, lease.ErrStaleBoot)
}

// files are what a job has.
type files struct{ lease, ticket, dir, lock bool }

// readers is how many jobs are read side by side: a node may have a thousand jobs with two files each.
const readers = 4

// readJobs reads the jobs of lists that are in order. A job with only a lock is left out: its prolog has not written
// anything yet.
func (r *Reader) readJobs(leased, tickets, dirs, locked []uint32) []Job {
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(leased, tickets, dirs))))
	in := func(list []uint32, job uint32) bool {
		_, found := slices.BinarySearch(list, job)
		return found
	}
	jobs := make([]Job, len(all))
	_ = wait.Each(readers, func(first int) error {
		for i := first; i < len(all); i += readers {
			id := all[i]
			jobs[i] = r.readJob(id, files{in(leased, id), in(tickets, id), in(dirs, id), in(locked, id)})
		}
		return nil
	})
	return jobs
}

// readJob reads the records of one job. Without root it reads the ticket instead of the lease.
func (r *Reader) readJob(id uint32, has files) Job {
	j := Job{
		ID: id, dir: has.dir, Devices: []Held{}, Daemons: []Daemon{},
		ticketErr: lease.ErrNotFound, err: lease.ErrNotFound,
	}
	if has.ticket {
		ticket, err := r.Store.ReadTicket(id)
		if j.ticketErr = err; err == nil {
			j.ticket = &ticket
		}
		if grant := ticket.Grant; err == nil && ticket.RefusalReason == "" {
			j.Share, j.Memory, j.Ceiling = grant.Share.String(), grant.Memory.String(), policy.PercentFrom(grant.Ceiling)
		}
	}
	if has.lock {
		if holder, acting := r.Store.LockHolder(j.ID); acting {
			j.Acting = holder.PID
		}
	}
	if has.lease {
		l, err := r.Store.Read(id)
		if j.err = err; err == nil {
			j.obeys(l)
			j.Guard = r.guardOf(l)
		}
	}
	if j.ticket != nil && j.err != nil {
		j.follows(*j.ticket)
		if info, err := os.Lstat(r.Store.TicketPath(id)); err == nil {
			published := info.ModTime()
			j.Since = &published
		}
	}
	j.leased = has.lease && !errors.Is(j.err, lease.ErrNotFound) && !errors.Is(j.err, lease.ErrStaleBoot)
	switch {
	case j.leased && j.err != nil && !errors.Is(j.err, fs.ErrPermission):
		j.Phase = Unreadable
	case !j.leased && j.Refused == "":
		j.Phase = Orphaned
	}
	return j
}

// guardOf returns the guard that a lease names. Its state is for people, and empty if it cannot be read.
func (r *Reader) guardOf(l lease.Lease) *Guard {
	if l.Hold == 0 || l.Guard.PID == 0 {
		return nil
	}
	state, _ := r.Store.ReadGuard(l.Job.ID)
	g := &Guard{PID: l.Guard.PID, Running: l.Guard.Running(), GuardState: state}
	promised, err := r.Store.GuardPromise(l.Job.ID)
	if err == nil && g.Running && r.Clock().Sub(promised) > lateGuard {
		g.Stalled = &promised
	}
	return g
}

// lateGuard is longer than a guard takes for anything on a busy node.
const lateGuard = 5 * time.Second

func (j *Job) obeys(l lease.Lease) {
	j.owner, j.sluid = l.Job, l.SLUID
	j.User, j.UID, j.Rule, j.Phase = l.Job.User, l.Job.UID, l.Rule, Phase(l.Phase)
	j.Part, j.Joined, j.noMPS = l.Part, l.Joined, l.NoMPS
	if !l.CreatedAt.IsZero() {
		made := l.CreatedAt
		j.Since = &made
	}
	for _, held := range l.GPUs {
		j.Devices = append(j.Devices, Held{UUID: held.UUID, Set: held.NewMode, Clients: []Client{}})
	}
	j.attach(l.Daemons)
	if l.NoMPS && l.Phase == lease.Opened {
		if j.Phase = Recorded; j.ticket != nil {
			j.Refused = j.ticket.RefusalReason
		}
	}
}

// follows takes the job's state from a ticket, if there is no lease to read.
func (j *Job) follows(t lease.Ticket) {
	j.owner = t.Job
	j.User, j.UID, j.Rule, j.Phase = t.Job.User, t.Job.UID, t.Rule, Opened
	j.Part, j.Joined = t.Part, t.Joined
	if t.RefusalReason != "" {
		j.Phase, j.Refused = Refused, t.RefusalReason
	}
	if t.Joined != 0 { // its daemons are the shared lease's
		t.Daemons = nil
	}
	for _, device := range t.Devices {
		held := Held{UUID: device.UUID, Clients: []Client{}}
		if t.Exclusive && !device.UUID.MIG() {
			held.Set = site.ModeExclusiveProcess
		}
		j.Devices = append(j.Devices, held)
	}
	j.attach(t.Daemons)
}

func (j *Job) attach(daemons []lease.Daemon) {
	for _, d := range daemons {
		j.Daemons = append(j.Daemons, Daemon{
			PID: d.Proc.PID, Devices: d.Devices, PipeDir: d.PipeDir, State: Alive, Servers: []mps.Server{}, record: d,
		})
	}
}
