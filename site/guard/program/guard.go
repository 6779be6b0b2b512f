// SPDX-License-Identifier: Apache-2.0

// Package program builds the guard of a job from its parts. The guard is static and links no C, no NVML, no HCL and no
// cobra.
package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/rs/zerolog/diode"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/guard"
	"github.com/slurm-mps/slurm-mps/site/guard/pause"
	"github.com/slurm-mps/slurm-mps/site/guard/take"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/logfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/witness"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

const usage = `guard holds the driver files of a job's dead clients, so that the job's
other clients live. The prolog starts it, and the epilog ends it.

  --job ID            the job, which has a lease on this node
  --nvml FILE         gpu-usage loads NVML from FILE
  --interval DURATION gpu-usage takes a sample for the job's report so often,
                      with 0s never; 10s without this flag
  --root DIR          move /run/slurm-mps and /var/log/slurm-mps below DIR
  --take              duplicate files for the guard that started this process
  --pause DURATION    pause processes for the guard that started this process
  --clear NAME        clear a file system below /run/slurm-mps/busy for the
                      program that started this process
  --version, --help

It exits with 0 when it is told to end or the job's lease is gone, with 1 when
it cannot guard.
`

// line is the command line.
type line struct {
	paths    site.Paths
	job      uint32
	nvml     string
	interval time.Duration
	take     bool
	pause    time.Duration
	clear    string
}

// Main runs the guard and returns its exit code.
func Main(p cli.Process) int {
	l := line{interval: site.DefaultConfig().UsageInterval}
	done, err := p.ParseAlone("guard", usage, cli.Flag{Name: "root", To: &l.paths.Root}, cli.Flag{Name: "job", To: &l.job},
		cli.Flag{Name: "nvml", To: &l.nvml}, cli.Flag{Name: "interval", To: &l.interval}, cli.Flag{Name: "take", To: &l.take},
		cli.Flag{Name: "pause", To: &l.pause}, cli.Flag{Name: "clear", To: &l.clear})
	switch {
	case done:
		return cli.ExitOK
	case err != nil:
	case l.take:
		err = take.Run(0)
	case l.pause > 0:
		err = pause.Run(l.pause)
	case l.clear != "":
		err = lease.Clear(l.paths.Run(), l.clear)
	case l.job == 0:
		err = errors.New("cannot guard: want --job ID: see guard --help")
	default:
		err = run(p, l)
	}
	if err != nil {
		p.PrintError("guard", err)
		fmt.Fprintln(p.Out, words.OneLine(err)) // the prolog reads stdout
		return cli.ExitDrain
	}
	return cli.ExitOK
}

// collectAt keeps the guard small, because it lives as long as its job: Go collects garbage when its heap, of about 1
// MiB, has grown by this many percent. A limit of the memory is not used. Near it, Go collects all the time (measured:
// 700 times a second, and a scan of the guard then took 0.1 s).
const collectAt = 25

func run(p cli.Process, line line) error {
	job, paths := line.job, line.paths
	debug.SetGCPercent(collectAt)
	if os.Geteuid() != 0 {
		return errors.New("cannot guard: not root: the prolog runs this program")
	}
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	store := lease.OpenReadOnly(paths.Run(), boot)
	lock, err := lockFor(store, job)
	if err != nil {
		return err
	}
	l, err := leaseFor(store, lock, job)
	if err != nil {
		return errors.Join(err, lock.Release())
	}
	if err := leave(l.GuardGroup); err != nil {
		warn(paths, job, err, "the guard stays in the prolog's control group")
	}
	if l.NoMPS {
		return becomeRecorder(p, lock, line)
	}
	defer runtime.KeepAlive(lock)            // the kernel releases the lock at the end of this process, and the epilog waits for that
	_ = proc.SetOOMScore(os.Getpid(), -1000) // to kill a process of 10 MiB would not help
	// Room for all duplicates and their pidfds, if this process may. Go has raised the soft limit before.
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 8192, Max: 8192})
	raisePriority()
	// Go woke another core for each question about a process: 900 times a scan on 32 (docs/measurements/28-h200).
	runtime.GOMAXPROCS(1)
	out, closeLog := logfile.Open(paths.Log())
	defer closeLog()
	lines := diode.NewWriter(out, maxLines, 0, nil)
	defer closeLines(lines)
	return guardJob(p, store, lock, l, line, logfile.Of(lines, "guard", job))
}

// becomeRecorder makes this process the recorder of a job without MPS. Its pid, its start time and its lock stay, so
// that an epilog finds and ends it like a guard. The prolog does not wait until the recorder has loaded NVML.
func becomeRecorder(p cli.Process, lock *lease.JobLock, line line) error {
	err := lock.Inherit()
	if err == nil {
		fmt.Fprintln(p.Out, guard.Ready)
		detach()
		argv := line.recorder()
		err = fmt.Errorf("cannot start %s: %w", argv[0], unix.Exec(argv[0], argv, nil))
	}
	warn(line.paths, uint32(line.job), err, "no report of this job is kept")
	return errors.Join(err, lock.Release())
}

func warn(paths site.Paths, job uint32, err error, what string) {
	out, closeLog := logfile.Open(paths.Log())
	defer closeLog()
	log := logfile.Of(out, "guard", job)
	log.Warn().Err(err).Msg(what)
}

const (
	// maxLines bounds the lines of the log that wait for the disk. The guard never waits for the disk, because a new
	// client must be found within 30 ms. Lines above the bound are lost.
	maxLines  = 1000
	linesWait = time.Second
)

// closeLines waits until the last lines are written. It waits for linesWait at most, because the disk may not answer.
func closeLines(lines diode.Writer) {
	ctx, cancel := context.WithTimeout(context.Background(), linesWait)
	defer cancel()
	_, _ = wait.Within(ctx, func() (struct{}, error) { return struct{}{}, lines.Close() })
}

// leaseFor reads the lease of a job that needs a guard.
func leaseFor(store *lease.Store, lock *lease.JobLock, job uint32) (lease.Lease, error) {
	if !lock.Signed() { // no other process could find this guard
		return lease.Lease{}, errors.New("cannot guard: its lock cannot be written: the file system of /run is full")
	}
	l, err := store.Read(job)
	switch {
	case errors.Is(err, lease.ErrNotFound) || errors.Is(err, lease.ErrStaleBoot):
		err = fmt.Errorf("cannot guard job %d: it has no lease on this node: its prolog makes one", job)
	case err == nil && l.Phase == lease.Closing:
		err = fmt.Errorf("cannot guard: the epilog closes job %d", job)
	}
	return l, err
}

// lockFor takes the lock of the job's guard.
func lockFor(store *lease.Store, job uint32) (*lease.JobLock, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return store.LockGuard(ctx, job)
}

func guardJob(
	p cli.Process, store *lease.Store, lock *lease.JobLock, l lease.Lease, line line, log zerolog.Logger,
) error {
	self, err := proc.Current()
	if err != nil {
		return err
	}
	o := options(&record{store: store, job: l.Job, started: l.Daemons, lock: lock, self: self, log: log}, l, line)
	g, err := guard.New(o)
	if err != nil {
		return err
	}
	asked, forget := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer forget()
	context.AfterFunc(asked, g.Stop)
	fmt.Fprintln(p.Out, guard.Ready)
	detach()
	log.Info().Str("step", "guards").Dur("hold", time.Duration(o.Hold)).Dur("pause", time.Duration(o.Pause)).Int("gpus", len(o.Minors)).Send()
	g.Run()
	log.Info().Str("step", "guard ended").Send()
	return nil
}

// options are what the guard of a job gets.
func options(r *record, l lease.Lease, line line) guard.Options {
	o := guard.Options{
		Job: l.Job.ID, SLUID: l.SLUID, UID: l.Job.UID, GID: l.Job.GID, GuardSettings: l.GuardSettings, Devices: line.paths.Devices(),
		Taker: []string{"/proc/self/exe", "--take"}, Pauser: []string{"/proc/self/exe", "--pause"},
		NameOf: nameOf, Daemons: r.daemons, Log: func(l guard.Line) { writeLine(r.log, l) },
		Gauge: line.gpuUsage(), Raised: true, Record: r,
	}
	if line.interval > 0 {
		o.Recorder = line.recorder()
	}
	for _, held := range l.GPUs {
		o.Minors = append(o.Minors, held.Minor)
		o.Gauge = append(o.Gauge, "--gpu", string(held.UUID))
	}
	for _, d := range l.Daemons {
		o.Pipes, o.Logs = append(o.Pipes, d.PipeDir), append(o.Logs, d.LogDir)
	}
	return o
}

func writeLine(log zerolog.Logger, l guard.Line) {
	event := log.Info()
	if l.Warning {
		event = log.Warn()
	}
	event.Err(l.Err).Fields(l.Fields).Msg(l.Message)
}

func (l line) recorder() []string {
	return l.gpuUsage("--record", strconv.FormatUint(uint64(l.job), 10), "--interval", l.interval.String())
}

// gpuUsage returns the command line of gpu-usage with some flags.
func (l line) gpuUsage(flags ...string) []string {
	return append([]string{site.ProgramPath("gpu-usage"), "--root", l.paths.Root, "--nvml", l.nvml}, flags...)
}

// nameOf returns the name of a client, from its environment: "rank 3", or "" without a launcher.
func nameOf(p proc.Process) string {
	environment := proc.Variables(context.Background(), p, slurm.RankVariables()...)
	rank, step := witness.RankOf(p.PID, environment.Values)
	switch {
	case environment.Err != nil || rank < 0:
		return ""
	case step != "" && step != "batch":
		return fmt.Sprintf("rank %d of step %s", rank, step)
	}
	return fmt.Sprintf("rank %d", rank)
}

// record is the job's record, which is root's. Only the guard's own goroutine uses started.
type record struct {
	store   *lease.Store
	job     lease.Job
	started []lease.Daemon // with pid 0 until the lease has it
	lock    *lease.JobLock
	self    proc.Process
	log     zerolog.Logger
}

// Promise is told by when the guard acts again. If that cannot be written, mpsctl status marks the guard as stalled.
func (r *record) Promise(deadline time.Time) { _ = r.lock.Promise(deadline) }

func (r *record) Published() bool { return r.store.HasTicket(r.job.ID) }

func (r *record) Member(job string) bool { return r.store.IsMember(r.job.ID, job) }

func (r *record) TakerPlace() (*lease.TakerPlace, error) {
	return r.store.TakerPlace(lease.Taker{Job: r.job.ID, UID: r.job.UID, Guard: r.self})
}

func (r *record) Save(s lease.GuardState) { r.logFailure(r.store.SaveGuard(r.job.ID, s)) }

func (r *record) SaveRoom(room lease.Room) { r.logFailure(r.store.SaveRoom(r.job.ID, room)) }

func (r *record) logFailure(err error) {
	if err != nil {
		r.log.Warn().Err(err).Send()
	}
}

// daemons returns the job's daemons. The prolog starts the daemons at the same time as the guard. So the lease is
// read again until all pids are known.
func (r *record) daemons() (all []proc.Process) {
	if slices.ContainsFunc(r.started, func(d lease.Daemon) bool { return d.Proc.PID == 0 }) {
		if l, err := r.store.Read(r.job.ID); err == nil {
			r.started = l.Daemons
		}
	}
	for _, d := range r.started {
		all = append(all, d.Proc)
	}
	return all
}

// Leased reports whether the lease exists. A lease that cannot be read exists.
func (r *record) Leased() bool {
	_, err := r.store.Read(r.job.ID)
	return !errors.Is(err, lease.ErrNotFound) && !errors.Is(err, lease.ErrStaleBoot)
}

// Guards returns the number of jobs with MPS. Each has a guard, unless its policy wants none.
func (r *record) Guards() int { return r.store.Guards() }

// detach points stdout to /dev/null, because the prolog has read all that it needs.
func detach() {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Dup3(null, 1, 0)
		unix.Close(null)
	}
}

// raisePriority puts this process before the job's processes, which may use all cores. The guard must find a client
// within some ten milliseconds.
//
// If the kernel groups processes by session (sched_autogroup), a priority counts among the threads of one session only. The
// guard has its own session, so the priority of the session is raised, too.
func raisePriority() {
	_ = os.WriteFile("/proc/self/autogroup", []byte("-20"), 0)
	proc.SetNice(os.Getpid(), -20)
}

// leave moves this process into the group that its lease gives it. Without one, it leaves the job's groups. With
// PrologFlags=RunInJob, a prolog runs in these groups, and Slurm ends their processes with the job.
func leave(group string) error {
	if group != "" {
		return cgroup.Enter(group)
	}
	groups, _ := proc.GroupsOf(os.Getpid())
	for _, group := range groups {
		if !group.OfAJob() {
			continue
		}
		folder := strings.TrimPrefix(group.Controllers, "name=")
		_ = os.WriteFile(filepath.Join("/sys/fs/cgroup", folder, "cgroup.procs"), []byte("0"), 0)
	}
	return nil
}
