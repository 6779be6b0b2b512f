// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// sampler reads the use of a GPU since the last call.
type sampler interface {
	Read() (gpu.Activity, error)
}

// options are the input of a recorder.
type options struct {
	lease    lease.Lease
	ticket   lease.Ticket
	folder   *os.File // the job's folder
	interval time.Duration
	samplers []sampler // one for each device of the ticket, nil if the device cannot be sampled
	read     func(pid int) clientenv.Environment
	members  func() ([]lease.Lease, error)                // of the jobs that have joined the lease's daemons
	share    func(job uint32) string                      // of such a job, "" until it has its ticket
	others   func(gpu site.UUID, job uint32) (others int) // with a lease of a GPU
	// processes lists those on a GPU, for a job without MPS. It is nil if a guard reports the clients.
	processes func(site.UUID) ([]gpu.Process, error)
	// withdrawn reports whether the job's end has begun, and daemonGone whether a daemon has ended before.
	withdrawn, daemonGone func() bool
	log                   zerolog.Logger
}

const (
	// firstSample is the time of the first sample. It is short, so that a short job has a sample.
	firstSample = time.Second
	// writeEvery is the time between two writes of the report if clients begin and end. So the last line of a job's
	// script can print how the job's clients ended. Several events come together, and a server logs a fatal error 0.2 s
	// after it has ended a client (measured on an H200), so each write waits for writeSoon.
	writeSoon, writeEvery = 300 * time.Millisecond, time.Second
	// restSamples divides the interval. When the last client ends, a step has ended. Then the next sample comes this
	// part of the interval after the last sample.
	restSamples = 5
)

// recorder keeps the report of one job. It changes nothing but the report. No program waits for it, and the job does not
// depend on it.
type recorder struct {
	options
	report    usage.Report // of whole GPUs
	own       *member      // the lease's job
	joined    []*member
	clients   clients
	logs      []*log
	began     time.Time // of the count of energy
	last      time.Time // of the last sample
	written   time.Time
	unwritten int // samples since the last write
	warned    bool
}

func newRecorder(o options) *recorder {
	r := &recorder{options: o, clients: clients{read: o.read, daemons: o.lease.Daemons}, began: time.Now()}
	r.report = describe(o.lease)
	if !o.lease.NoMPS {
		r.report.Share = o.ticket.Grant.Share.String()
	}
	for _, d := range o.ticket.Devices {
		r.report.GPUs = append(r.report.GPUs, usage.GPU{
			Index: d.Minor, UUID: d.UUID, Name: d.Name, SMs: d.SMs, MemoryMiB: d.MemoryMiB,
			Resolution: max(int(o.interval/time.Second), 1), Samples: []usage.Sample{},
		})
	}
	r.own = r.newMember(o.lease)
	for _, d := range o.lease.Daemons {
		r.logs = append(r.logs, &log{dir: d.LogDir, uid: o.lease.Job.UID})
	}
	return r
}

// describe returns a report with what a lease has of its job.
func describe(l lease.Lease) usage.Report {
	var request policy.Request
	_ = json.Unmarshal(l.Request, &request) // a missing field is empty
	return usage.Report{
		Schema: usage.Schema, Job: l.Job.ID, Node: request.Node, NodeList: request.NodeList, User: l.Job.User,
		Partition: request.Partition, Account: request.Account, Rule: l.Rule, NoMPS: l.NoMPS, Begin: l.CreatedAt,
	}
}

// readEvents sends on the events of the guard, and closes the channel when there are no more.
func readEvents(source io.Reader) <-chan usage.Event {
	events := make(chan usage.Event, 64)
	go func() {
		defer close(events)
		lines := bufio.NewScanner(source)
		for lines.Scan() {
			var e usage.Event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				events <- e
			}
		}
	}()
	return events
}

// run records until there are no more events of the guard. The job ends when its ticket is withdrawn. A job without MPS
// has neither, and is recorded until the epilog ends this process.
func (r *recorder) run(events <-chan usage.Event, withdrawn <-chan struct{}) {
	r.last = time.Now()
	timer, changed := time.NewTimer(min(firstSample, r.interval)), (<-chan time.Time)(nil)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				if r.report.End.IsZero() && r.withdrawn() { // which the watch has not noticed yet
					r.end(time.Now())
				}
				r.write()
				return
			}
			lived := r.clients.find((*client).lives) != nil
			r.tell(e)
			if changed == nil {
				changed = time.After(max(writeSoon, time.Until(r.written.Add(writeEvery))))
			}
			if lived && r.clients.find((*client).lives) == nil && r.report.End.IsZero() {
				timer.Reset(max(time.Until(r.last.Add(r.interval/restSamples)), 0))
			}
		case <-changed:
			changed = nil
			r.readLogs()
			r.findDaemons(time.Now())
			r.write()
		case <-timer.C:
			r.sample(time.Now())
			timer.Reset(r.interval)
		case <-withdrawn:
			withdrawn = nil
			timer.Stop()
			if r.end(time.Now()); r.lease.NoMPS {
				return // no guard has anything more to report
			}
		}
	}
}

// tell takes an event of the guard.
func (r *recorder) tell(e usage.Event) {
	r.report.Counts = e.Counts
	if e.Proc.PID > 0 {
		r.clients.tell(e)
	}
}

// end takes the last sample, for which the epilog waits. A client that still lives has outlived the job.
func (r *recorder) end(now time.Time) {
	proc.SetNice(os.Getpid(), 0)
	r.report.End = now
	r.clients.endGone(now)
	r.clients.stay()
	r.sample(now)
}

// sample takes one sample of everything, and writes the report.
func (r *recorder) sample(now time.Time) {
	r.clients.endGone(now)
	r.sampleAll(now)
	if r.lease.NoMPS { // no guard counts its processes
		r.report.ClientsSeen, _ = r.clients.count(anyJob)
		r.report.ClientsPeak = max(r.report.ClientsPeak, r.clients.peak(anyJob))
	}
	r.readLogs()
	r.findDaemons(now)
	r.last = now
	if r.unwritten++; r.lease.NoMPS && r.report.End.IsZero() && r.unwritten < r.writeEach() {
		return
	}
	r.write()
}

// writeEach is the number of samples for a write of a job without MPS. With eight GPUs, a long report takes 15 ms to
// write, and all of the recorder may take 0.1 % of a core.
func (r *recorder) writeEach() int { return 1 + len(r.report.GPUs)*len(r.report.GPUs[0].Samples)/2000 }

// findDaemons notes when a daemon has ended before the job.
func (r *recorder) findDaemons(now time.Time) {
	if r.report.DaemonGone.IsZero() && r.daemonGone != nil && r.daemonGone() {
		r.report.DaemonGone = now
	}
}

// sampleAll takes a sample of each GPU, for each job.
func (r *recorder) sampleAll(now time.Time) {
	r.findJoined()
	for n, sampler := range r.samplers {
		if sampler == nil {
			continue
		}
		a, err := sampler.Read()
		if err == nil && r.processes != nil { // a failed list is no idle GPU
			a.Memory, err = r.findProcesses(n, now)
		}
		if err != nil {
			r.warn(err, "cannot sample a GPU: the report has a gap")
			continue
		}
		g, before := &r.report.GPUs[n], r.began // since which its energy is not counted yet
		if len(g.Samples) > 0 {
			before = g.Samples[len(g.Samples)-1].At
		}
		used := max(a.EnergyJ-g.EnergyJ, 0)
		g.Source, g.EnergyJ = a.Source, g.EnergyJ+used
		a.At, a.Clients = now, r.clients.onGPU(n, a.Memory)
		g.Add(r.report.Begin, a.Sample)
		for _, m := range append(r.joined, r.own) {
			r.sampleMember(m, n, a.Memory, energy{before, now, used})
		}
	}
}

// readLogs reads the fatal errors of the daemons and marks the clients that they concern.
func (r *recorder) readLogs() {
	for n, l := range r.logs {
		for _, f := range l.read() {
			gpus := r.servedBy(n)
			c := r.clients.find(func(c *client) bool { return c.Proc.PID == f.pid && c.gpus()&gpus != 0 })
			if c != nil {
				gpus &= c.gpus()
			}
			r.clients.fault(gpus, f.at)
			if first := bits.TrailingZeros64(gpus); first < len(r.report.GPUs) && len(r.report.Faults) < usage.MaxFaults {
				r.report.Faults = append(r.report.Faults, usage.Fault{At: f.at, GPU: first, PID: f.pid})
			}
		}
	}
}

// servedBy returns the GPUs of the n-th daemon, as bits.
func (r *recorder) servedBy(n int) (gpus uint64) {
	for i, d := range r.ticket.Devices {
		if d.Daemon == n {
			gpus |= 1 << i
		}
	}
	return gpus
}

// write puts the report into the job's folder. If the folder is gone, the job is closed, and this is not an error.
func (r *recorder) write() {
	r.written, r.unwritten = time.Now(), 0
	err := r.reportOf(r.own, anyJob).Write(r.folder, usage.Running, r.lease.Job.UID)
	for _, m := range r.joined {
		name := usage.RunningOf(m.Job, r.lease.Job.ID)
		err = errors.Join(err, r.reportOfJoined(m).Write(r.folder, name, r.lease.Job.UID))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.warn(err, "cannot write the job's report")
	}
}

// warn logs the first failure only, because the next failures are the same at every interval.
func (r *recorder) warn(err error, what string) {
	if !r.warned {
		r.warned = true
		r.log.Warn().Err(err).Msg(what)
	}
}

// watchTicket closes a channel when a job's ticket is withdrawn. The epilog removes the ticket first.
func watchTicket(path string) (withdrawn <-chan struct{}) {
	gone := make(chan struct{})
	wait := watch(filepath.Dir(path))
	go func() {
		for _, err := os.Lstat(path); err == nil; _, err = os.Lstat(path) {
			wait()
		}
		close(gone)
	}()
	return gone
}

// watch returns a function that waits for a change in a folder, or for a second if the kernel allows no watch.
func watch(folder string) func() {
	sleep := func() { time.Sleep(time.Second) }
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return sleep
	}
	if _, err := unix.InotifyAddWatch(fd, folder, unix.IN_DELETE|unix.IN_ONLYDIR); err != nil {
		unix.Close(fd)
		return sleep
	}
	buffer := make([]byte, 4096)
	return func() {
		if n, err := unix.Read(fd, buffer); err != unix.EINTR && n <= 0 {
			sleep()
		}
	}
}
