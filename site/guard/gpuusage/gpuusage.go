// SPDX-License-Identifier: Apache-2.0

// Package gpuusage is the program gpu-usage, which a guard starts: the guard has no NVML. It has two tasks, each in a
// process of its own.
//
//	gpu-usage           gauge.go     answers the guard: free memory, clients and activity of each GPU
//	gpu-usage --record  recorder.go  keeps the report of a job's use (docs/decisions.md, 34)
//	                    members.go   of a part of a GPU, and of jobs that share a daemon (docs/decisions.md, 43)
//
// The numbers pass these packages: site/gpu reads NVML, this package adds up, site/usage is the report, site/usage/page
// and mpsctl report show it. The guard's side of the gauge is site/guard/usage.go.
package gpuusage

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/logfile"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// line is the command line.
type line struct {
	paths    site.Paths
	library  string // path of NVML
	devices  []string
	job      uint32
	interval time.Duration
}

const help = `gpu-usage prints a line of JSON for each line of its stdin, until its stdin
ends. The guard of a job starts it with the first client. With --record, gpu-usage
writes the report of a job. The guard starts this recorder when the guard
itself starts, and writes the job's clients to the recorder's stdin.

Usage:
  gpu-usage [flags]

Flags:
      --gpu UUID            the GPUs, by UUID
  -h, --help                help for gpu-usage
      --interval DURATION   take a sample for the report each DURATION (default 10s)
      --nvml FILE           the FILE libnvidia-ml.so.1; without it, the loader finds NVML
      --record JOB          keep the report of this JOB, which has a lease
      --root DIR            move /run/slurm-mps and /var/log/slurm-mps below DIR
  -v, --version             version for gpu-usage
`

// Main runs gpu-usage and returns its exit code.
func Main(p cli.Process) int {
	l := line{interval: site.DefaultConfig().UsageInterval}
	done, err := p.ParseAlone("gpu-usage", help, cli.Flag{Name: "root", To: &l.paths.Root}, cli.Flag{Name: "nvml", To: &l.library},
		cli.Flag{Name: "gpu", To: &l.devices}, cli.Flag{Name: "record", To: &l.job}, cli.Flag{Name: "interval", To: &l.interval})
	if err == nil && !done {
		err = l.run(p)
	}
	if err != nil {
		p.PrintError("gpu-usage", err)
		return cli.ExitDrain
	}
	return cli.ExitOK
}

func (l line) run(p cli.Process) error {
	switch err := l.paths.Check(); {
	case err != nil:
		return err
	case l.job > 0 && os.Geteuid() != 0:
		return errors.New("cannot record: not root: the guard of a prolog runs this program")
	case l.interval < time.Second:
		return errors.New("cannot record: want --interval of 1s or more")
	case l.job > 0:
		return l.record()
	}
	driver, err := gpu.OpenTimeout(l.library, gaugeTimeout)
	if err != nil {
		return err
	}
	questions := readQuestions(os.Stdin, func() { os.Exit(cli.ExitOK) }) // a call of the driver may hang at the end
	return runGauge(driver, l.devices, questions, p.Out)
}

// record writes the report of a job until the guard ends.
func (l line) record() error {
	beModest()
	out, closeLog := logfile.Open(l.paths.Log())
	defer closeLog()
	log := logfile.Of(out, "gpu-usage", l.job)
	err := l.recordJob(log)
	if err != nil {
		log.Warn().Err(err).Msg("no report of this job is kept")
	}
	return err
}

func (l line) recordJob(log zerolog.Logger) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	store := lease.OpenReadOnly(l.paths.Run(), boot)
	o := options{interval: l.interval, log: log}
	if o.lease, err = store.Read(l.job); err == nil && o.lease.NoMPS {
		return l.recordAlone(o, store)
	}
	events := readEvents(os.Stdin)
	withdrawn := watchTicket(store.TicketPath(l.job))
	o.ticket, err = store.ReadTicket(l.job)
	if errors.Is(err, lease.ErrNotFound) { // the epilog has begun
		return nil
	}
	if err == nil {
		o.lease, err = store.Read(l.job)
	}
	if err != nil {
		return err
	}
	if o.folder, err = osfile.OpenFolder(store.JobDir(l.job)); err != nil {
		return err
	}
	o.read = readerOf(o.lease)
	o.others = store.Others
	o.withdrawn = func() bool {
		_, err := os.Lstat(store.TicketPath(l.job))
		return err != nil
	}
	gone := func(d lease.Daemon) bool { return !d.Proc.Running() }
	o.daemonGone = func() bool { // the epilog withdraws the ticket before it ends a daemon
		return slices.ContainsFunc(o.lease.Daemons, gone) && !o.withdrawn()
	}
	if lease.IsShared(l.job) {
		o.members = func() ([]lease.Lease, error) { return readMembers(store, l.job) }
		o.share = func(job uint32) string {
			ticket, _ := store.ReadTicket(job) // none has no share
			return ticket.Grant.Share.String()
		}
	}
	driver, err := gpu.OpenTimeout(l.library, recordTimeout)
	if err != nil {
		return err
	}
	o.samplers = samplers(driver, o.ticket.Devices)
	newRecorder(o).run(events, withdrawn)
	return os.Stdout.Close() // the guard waits for no more
}

// readerOf returns a function that reads the environment of a client of a lease's job.
func readerOf(l lease.Lease) func(pid int) clientenv.Environment {
	return func(pid int) clientenv.Environment {
		return clientenv.Read(context.Background(), []int{pid}, l.Job.UID)[pid]
	}
}

// readMembers reads the leases of the jobs that share a lease's daemons.
func readMembers(store *lease.Store, shared uint32) (leases []lease.Lease, err error) {
	jobs, err := store.Members(shared)
	for _, job := range jobs {
		if l, err := store.Read(job); err == nil {
			leases = append(leases, l)
		}
	}
	return leases, err
}

// recordTimeout bounds one call of the driver for a report. If the last call takes longer, the report has no last
// sample.
const recordTimeout = 2 * time.Second

// samplers returns a sampler for each device. The sampler is nil if the device cannot be sampled.
func samplers(driver *gpu.NVML, devices []lease.TicketDevice) []sampler {
	all := make([]sampler, len(devices))
	for i, d := range devices {
		if s, err := driver.NewSampler(d.UUID); err == nil {
			all[i] = s
		}
	}
	return all
}

// beModest gives up the guard's advantages: the highest priority, and the protection when memory runs out. So the job's
// own processes run first.
func beModest() {
	_ = proc.SetOOMScore(os.Getpid(), 0)
	proc.SetNice(os.Getpid(), 10)
}
