// SPDX-License-Identifier: Apache-2.0

// This file has what a report of a part of a GPU has instead of the whole GPU's figures (docs/decisions.md, 43).

package gpuusage

import (
	"cmp"
	"slices"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// member is a job that the daemons of the lease serve: the lease's own, or one that has joined them.
type member struct {
	usage.Report           // its GPUs have what is known of the job alone
	joules       []float64 // of each whole GPU, while the job was there
	shards       int       // the most that its clients have
	known        bool      // the environment of a client is known
	before       lease.Counts
	peak         int
}

func (r *recorder) newMember(l lease.Lease) *member {
	m := &member{Report: describe(l), joules: make([]float64, len(r.report.GPUs)), before: r.report.Counts}
	m.Part = l.Part
	if l.Job.ID == r.lease.Job.ID {
		m.Share = r.report.Share
	}
	for _, g := range r.report.GPUs {
		g.Source, g.EnergyJ, g.Samples = "", 0, []usage.Sample{}
		m.GPUs = append(m.GPUs, g)
	}
	return m
}

// findJoined finds the jobs that have joined the daemons of a shared lease. It forgets those that have left: their
// epilogs have read their reports before.
func (r *recorder) findJoined() {
	if r.members == nil {
		return
	}
	leases, err := r.members()
	if err != nil {
		r.warn(err, "cannot see which jobs share the daemon")
		return
	}
	r.joined = slices.DeleteFunc(r.joined, func(m *member) bool {
		left := !slices.ContainsFunc(leases, m.has)
		if left {
			_ = unix.Unlinkat(int(r.folder.Fd()), usage.RunningOf(m.Job, r.lease.Job.ID), 0)
		}
		return left
	})
	for _, l := range leases {
		if !slices.ContainsFunc(r.joined, func(m *member) bool { return m.has(l) }) {
			r.joined = append(r.joined, r.newMember(l))
		}
	}
}

// has reports whether a lease is the member's. Slurm may give a number again.
func (m *member) has(l lease.Lease) bool { return l.Job.ID == m.Job && l.CreatedAt.Equal(m.Begin) }

// energy is what a whole GPU used in a time.
type energy struct {
	since, now time.Time
	joules     int
}

// after returns the energy after a time, as if the power had been the same all the time.
func (e energy) after(t time.Time) float64 {
	if !t.After(e.since) {
		return float64(e.joules)
	}
	return float64(e.joules) * float64(max(e.now.Sub(t), 0)) / float64(e.now.Sub(e.since))
}

// sampleMember adds a sample of a GPU to the report of a job with a part of it. It has the memory of the job's own
// clients, and no percentage: those are the whole GPU's, with the work of other jobs.
func (r *recorder) sampleMember(m *member, gpu int, memory map[int]int, e energy) {
	if !r.lease.Part.Shared() {
		return
	}
	g, s, job := &m.GPUs[gpu], usage.NoSample(e.now), m.Job
	if m == r.own { // all clients of a lease's own daemon are its job's
		job = anyJob
	}
	used, clients := r.clients.memory(job, memory)
	s.UsedMiB, s.Clients = float64(used), clients
	g.Add(m.Begin, s)
	m.joules[gpu] += e.after(m.Begin)
	if r.others != nil {
		g.Others = max(g.Others, r.others(g.UUID, m.Job))
	}
}

// part returns a job's part. The clients know the shards of a job. One without shards has whole GPUs.
func (r *recorder) part(m *member) lease.Part {
	if m.Part.Gres != lease.GresShard {
		return m.Part
	}
	n, known := r.clients.shards(m.Job)
	m.shards, m.known = max(m.shards, n), m.known || known
	if m.known && m.shards == 0 {
		return lease.Part{}
	}
	return lease.Part{Gres: m.Part.Gres, Units: m.shards, Count: m.Part.Count}
}

// reportOf returns the report of a member with the clients of a job.
func (r *recorder) reportOf(m *member, job uint32) usage.Report {
	if m.Share == "" && r.share != nil { // jobs that share a daemon may have other shares
		m.Share = r.share(m.Job)
	}
	for _, c := range r.clients.all {
		if c.of(job) {
			m.Name, m.Array = cmp.Or(m.Name, c.environment.JobName), cmp.Or(m.Array, c.environment.Array)
		}
	}
	report := m.Report
	report.Totals, report.Faults, report.End = r.report.Totals, r.report.Faults, r.report.End
	report.DaemonGone = r.report.DaemonGone
	report.Part = r.part(m)
	report.Clients = r.clients.rows(job, r.ticket.Devices, policy.PercentFrom(r.ticket.Grant.Ceiling))
	_, report.BadEnds = r.clients.count(job)
	report.GPUs = r.gpusOf(m, report)
	for _, g := range report.GPUs {
		report.EnergyJ += g.EnergyJ
	}
	return report
}

// gpusOf returns the GPUs of a member's report: the whole GPUs if it has them alone.
func (r *recorder) gpusOf(m *member, report usage.Report) []usage.GPU {
	if !r.lease.Part.Shared() {
		return r.report.GPUs
	}
	before := func(s usage.Sample) bool { return !s.At.After(m.Begin) }
	gpus := slices.Clone(m.GPUs)
	for n := range gpus {
		if whole := r.report.GPUs[n]; report.Whole() {
			gpus[n] = whole
			gpus[n].Samples = slices.DeleteFunc(slices.Clone(whole.Samples), before)
		}
		gpus[n].EnergyJ = int(report.Part.Fraction()*m.joules[n] + 0.5)
	}
	return gpus
}

// reportOfJoined returns the report of a job that shares the daemons with others. Its counts are those of its clients,
// because the guard's are those of all jobs.
func (r *recorder) reportOfJoined(m *member) usage.Report {
	report := r.reportOf(m, m.Job)
	report.ClientsSeen, _ = r.clients.count(m.Job)
	m.peak = max(m.peak, r.clients.peak(m.Job))
	report.ClientsPeak, report.OutsideSeen = m.peak, 0
	report.Pauses -= m.before.Pauses
	report.PausedMillis -= m.before.PausedMillis
	earlier := func(f usage.Fault) bool { return f.At.Before(m.Begin) }
	report.Faults = slices.DeleteFunc(slices.Clone(report.Faults), earlier)
	report.SharedWith = nil
	for _, other := range r.joined {
		if other != m {
			report.SharedWith = append(report.SharedWith, other.Job)
		}
	}
	return report
}
