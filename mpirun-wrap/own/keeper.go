// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/driver"
	"github.com/slurm-mps/slurm-mps/site/guard"
	"github.com/slurm-mps/slurm-mps/site/guard/pause"
	"github.com/slurm-mps/slurm-mps/site/guard/take"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/witness"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// The programs that mpirun-wrap is if its first argument is one of these. They are not options of users.
const (
	superviseMode = "--own-supervise" // keeps a keeper running: DIR JOB ROOT
	keepMode      = "--own-keep"      // is the keeper: DIR JOB ROOT
	takeMode      = "--own-take"      // duplicates files for the guard
	pauseMode     = "--own-pause"     // pauses processes for the guard: DURATION
	gaugeMode     = "--own-gauge"     // reads the GPUs' usage for the guard, with nvidia-smi: PATH LD_LIBRARY_PATH UUID...
)

// itself is this program's file.
const itself = "/proc/self/exe"

// Main runs one of these programs. It reports false if the arguments name none.
func Main(args []string, environ []string) (code int, is bool) {
	if len(args) == 0 {
		return 0, false
	}
	var err error
	switch rest := args[1:]; {
	case args[0] == superviseMode && len(rest) == 3:
		err = supervise(rest)
	case args[0] == keepMode && len(rest) == 3:
		err = keep(rest[0], rest[1], rest[2], slurm.NewEnv(environ))
	case args[0] == takeMode && len(rest) == 0:
		err = take.Run(0)
	case args[0] == pauseMode && len(rest) == 1:
		var limit time.Duration
		if limit, err = time.ParseDuration(rest[0]); err == nil {
			err = pause.Run(limit)
		}
	case args[0] == gaugeMode && len(rest) > 2:
		err = runGauge(rest[0], rest[1], rest[2:])
	default:
		return 0, false
	}
	if err != nil {
		return 1, true
	}
	return 0, true
}

// startKeeper starts the supervisor of a step's keeper in a session of its own, so that no terminal ends it. Both
// inherit the lock.
func startKeeper(dir string, step step, lock *os.File) error {
	argv := []string{"mpirun-wrap", superviseMode, dir, strconv.FormatUint(uint64(step.Job), 10), step.Root}
	process, err := start(argv, withoutPipes(step.env), lock)
	if err != nil {
		return fmt.Errorf("cannot start the daemon's keeper: %w", err)
	}
	return process.Release()
}

// start starts a mode of this program in a new session, with a lock as descriptor 3.
func start(argv, env []string, lock *os.File) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return os.StartProcess(itself, argv, &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{null, null, null, lock}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// maxRestarts limits how often a keeper is started again.
const maxRestarts = 5

// supervise runs the keeper, and again if it was killed. What a killed keeper has started becomes a child of this
// process.
func supervise(args []string) error {
	ignoreSignals()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	lock := os.NewFile(3, keeperLock)
	if _, err := lock.WriteAt(fmt.Appendf(nil, "%10d", os.Getpid()), 0); err != nil { // for allowGuard
		return err
	}
	for range maxRestarts {
		keeper, err := start(append([]string{"mpirun-wrap", keepMode}, args...), os.Environ(), lock)
		if err != nil {
			return err
		}
		end, err := keeper.Wait()
		if err != nil {
			return err
		}
		if end.Exited() {
			return nil
		}
	}
	return errors.New("the keeper was killed too often")
}

// endSignals are the signals that Slurm, a terminal or a launcher sends to all processes of a step. The ranks decide
// how they react, and the daemon must serve them until they have ended.
var endSignals = []syscall.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE, unix.SIGALRM, unix.SIGXCPU, unix.SIGTSTP,
}

// ignoreSignals ignores endSignals. Package os/signal has no effect in this program, whose runtime catches no signal
// (cmd/mpirun-wrap/signals.go).
func ignoreSignals() {
	var ignored struct {
		handler uintptr
		rest    [7]uintptr
	}
	ignored.handler = 1 // SIG_IGN
	for _, signal := range endSignals {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(&ignored)), 0, 8, 0, 0)
	}
}

// keeper starts, guards and ends the daemon of a step.
type keeper struct {
	dir     string
	root    string
	devices []site.Device
	program mps.ControlProgram
	job     lease.Job
	folders lease.Daemon // the daemon without its process
	process atomic.Pointer[proc.Process]
	control sync.Mutex // of the control program while the daemon is started or asked: see ControlProgram.Start
	store   *lease.Store
	clients atomic.Int32 // that the guard sees
}

// daemon is the daemon that was started last.
func (k *keeper) daemon() lease.Daemon {
	d := k.folders
	if p := k.process.Load(); p != nil {
		d.Proc = *p
	}
	return d
}

// keep is the keeper of a step. If MPS cannot be used, the ticket tells the ranks why, and the keeper stays until they
// have read it.
func keep(dir, job, root string, env slurm.Env) error {
	ignoreSignals()
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	unix.CloseOnExec(3)
	lock := os.NewFile(3, filepath.Join(dir, keeperLock))
	defer lock.Close()
	if !isAt(lock) { // an earlier keeper was killed while it removed the folder, and a folder of this name is other ranks'
		return endOrphan(dir)
	}
	alive, err := openLock(dir, aliveLock)
	if err != nil {
		return err
	}
	defer alive.Close() // and not before: Go closes a file that is not used any more, and with it goes the lock
	number, err := strconv.ParseUint(job, 10, 32)
	if err != nil {
		return err
	}
	k := &keeper{dir: dir, root: root}
	k.job = lease.Job{ID: uint32(number), UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), User: strconv.Itoa(os.Getuid())}
	g, err := k.serve(env)
	if err != nil {
		err = k.refuse(err)
	}
	stop := k.serveOn()
	waitForRanks(alive, k)
	stop()
	return errors.Join(err, k.end(g))
}

// end renames the folder first, because Slurm kills a step's processes soon after its tasks. From then on, new ranks may
// make a folder of this name again, with another daemon. So a daemon is found by its folder only before, and afterwards
// by its pid. Its servers end with it.
func (k *keeper) end(g *guard.Guard) (err error) {
	started := k.process.Load()
	if started == nil {
		err = endDaemon(k.folders)
	}
	removeFolder(k.dir)
	if g != nil {
		g.Stop()
	}
	for tries := 0; started != nil && tries < endTries; tries++ {
		if err = started.Kill(unix.SIGKILL); !errors.Is(err, proc.ErrSilent) {
			break
		}
	}
	return err
}

// endTries limits how often a daemon is killed that does not answer for a second each time.
const endTries = 10

// endOrphan kills the daemon of an earlier keeper. The supervisor is its parent now.
func endOrphan(dir string) error {
	all, err := mps.FindAll(context.Background())
	for _, p := range all {
		stat, unread := proc.ReadStat(p.PID)
		if unread == nil && stat.Parent == os.Getppid() && strings.HasPrefix(p.PipeDir, dir+"/") {
			err = errors.Join(err, stat.Kill(unix.SIGKILL))
		}
	}
	return err
}

// refuse tells the ranks why they have no MPS.
func (k *keeper) refuse(why error) error {
	if k.store == nil {
		return why
	}
	return k.store.WriteTicket(lease.Ticket{Job: k.job, RefusalReason: why.Error()})
}

// serve starts the daemon and the guard, and writes the ticket. A daemon that an earlier keeper of the step has started
// is taken over if it has a ticket.
func (k *keeper) serve(env slurm.Env) (*guard.Guard, error) {
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	folder := lease.ReadPrivate(k.dir, boot).DaemonDir(k.job.ID, 0)
	k.folders = lease.Daemon{PipeDir: filepath.Join(folder, "pipe"), LogDir: filepath.Join(folder, "log")}
	if k.store, err = lease.OpenPrivate(k.dir, boot, k.job.ID); err != nil {
		return nil, err
	}
	earlier, _ := k.store.ReadTicket(k.job.ID)
	_ = k.store.RemoveTicket(k.job.ID)
	if k.devices, err = usable(k.root, env); err != nil {
		return nil, err
	}
	path, err := lookUp("nvidia-cuda-mps-control", env)
	if err != nil {
		return nil, fmt.Errorf("cannot start an MPS daemon: %w", err)
	}
	k.program = mps.ControlProgram{Path: path, LibraryPath: env["LD_LIBRARY_PATH"], IgnoreSignals: endSignals}
	k.folders.Devices = site.UUIDs(k.devices)
	if serves(earlier) {
		k.process.Store(&earlier.Daemons[0].Proc)
	} else if err := endDaemon(k.folders); err != nil { // of an earlier keeper, or of an earlier folder of this name
		return nil, err
	}
	return k.open(env)
}

func (k *keeper) open(env slurm.Env) (*guard.Guard, error) {
	g, err := guard.New(k.options(env))
	if err != nil {
		return nil, err
	}
	if k.process.Load() == nil {
		err = k.startDaemon()
	}
	go g.Run()
	if err != nil {
		return g, err
	}
	return g, k.store.WriteTicket(k.ticket())
}

// startDaemon starts the daemon and its server. It tries again if the daemon was killed at its start, or if none could
// start: a child of a killed keeper may have become a daemon with these folders after serve had looked for one.
func (k *keeper) startDaemon() error {
	err := k.startOnce()
	if started := k.process.Load(); err == nil || started != nil && alive(*started) {
		return err
	}
	if left := endDaemon(k.folders); left != nil {
		return errors.Join(err, left)
	}
	return k.startOnce()
}

// startOnce returns when the daemon's server runs.
func (k *keeper) startOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), joinTime/2)
	defer cancel()
	k.control.Lock()
	started, err := k.program.Start(ctx, k.job, k.folders)
	k.control.Unlock()
	if err != nil {
		return err
	}
	k.process.Store(&started)
	if err := k.program.Configure(ctx, k.job, k.daemon(), lease.Limits{Ceiling: policy.PercentFrom(100)}); err != nil {
		return err
	}
	return k.program.WaitServer(ctx, k.job, k.daemon())
}

// serveOn starts the daemon again when it ends, for example because a rank has told it to quit. Between the end and the
// start, CUDA would run a new program without MPS, so serveOn waits for the end itself. It lasts until stop.
func (k *keeper) serveOn() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for k.process.Load() != nil && waitEnd(ctx, *k.process.Load()) {
			waitServers(ctx, k.folders.PipeDir)
			if err := k.startDaemon(); err != nil {
				_ = k.refuse(err)
				return
			}
			_ = k.store.WriteTicket(k.ticket())
		}
	}()
	return func() { cancel(); <-ended }
}

// waitServers waits a moment until the servers of a daemon that has ended have ended, too. Control programs of the user
// are left alone: one of them may have told the daemon to quit.
func waitServers(ctx context.Context, pipes string) {
	for range 100 {
		all, err := mps.FindAll(ctx)
		if err != nil || !slices.ContainsFunc(all, func(p mps.Process) bool { return p.Role == mps.RoleServer && p.PipeDir == pipes }) {
			return
		}
		wait.Sleep(ctx, 10*time.Millisecond)
	}
}

// alive reports whether a daemon that has answered before lives. One that is late to answer has not ended.
func alive(daemon proc.Process) bool { return len(proc.Left([]proc.Process{daemon})) > 0 }

// waitEnd waits for the end of a daemon. It reports false if ctx ends first.
func waitEnd(ctx context.Context, p proc.Process) bool {
	const look = 50 // ms
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err == nil {
		defer unix.Close(fd)
	}
	for ctx.Err() == nil {
		if !alive(p) {
			return true
		}
		if err != nil {
			wait.Sleep(ctx, look*time.Millisecond)
			continue
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, look)
	}
	return false
}

// grant is what a rank has without options.
func (k *keeper) grant() policy.Grant {
	grant := policy.DefaultGrant()
	grant.MaxClients = min(grant.MaxClients, policy.ClientsOf(driver.Node{Root: k.root}.Version()))
	if fit, err := k.program.Fit(len(k.devices)); err == nil {
		grant.MaxClients = min(grant.MaxClients, fit)
	}
	return grant
}

// ticket is what the ranks read. Slurm's positions of the GPUs are not known, so ranks that Slurm binds to some of them
// find these by CUDA_VISIBLE_DEVICES.
func (k *keeper) ticket() lease.Ticket {
	t := lease.Ticket{
		Job: k.job, Rule: ruleName, Grant: k.grant(), Daemons: []lease.Daemon{k.daemon()},
		ControlProgram: lease.Program{Path: k.program.Path, LibraryPath: k.program.LibraryPath}, ExchangeDir: k.store.ExchangeDir(k.job.ID),
	}
	for _, device := range k.devices {
		t.Devices = append(t.Devices, lease.TicketDevice{Device: device, Position: -1})
	}
	return t
}

// ruleName is the rule that a ticket of --own names.
const ruleName = "mpirun-wrap --own"

// options are what the guard gets, which runs with the user's rights.
func (k *keeper) options(env slurm.Env) guard.Options {
	clients := policy.ClientsOf(driver.Node{Root: k.root}.Version())
	o := guard.Options{
		Job: k.job.ID, SLUID: ownSLUID(), UID: k.job.UID, GID: k.job.GID, GuardSettings: lease.GuardOf(policy.DefaultGrant(), clients),
		Devices: filepath.Join(k.root, "/dev"), Pipes: []string{k.folders.PipeDir}, Logs: []string{k.folders.LogDir},
		Daemons: func() []proc.Process { return []proc.Process{k.daemon().Proc} },
		Taker:   []string{itself, takeMode}, Pauser: []string{itself, pauseMode},
		Warnings: guard.Warnings{Unguarded: k.unguarded, Outside: k.outside},
		Record:   k,
	}
	for _, device := range k.devices {
		o.Minors = append(o.Minors, device.Minor)
	}
	o.Gauge = k.gauge(env)
	return o
}

// ownSLUID returns the SLUID that names the control group of this job's processes, "" if none does.
func ownSLUID() string {
	groups, _ := proc.GroupsOf(os.Getpid())
	if jobs := witness.JobsOf(groups); len(jobs) > 0 {
		return jobs[0]
	}
	return ""
}

// The keeper is the record of its guard: it keeps the room for the ranks, and how many clients live.

func (k *keeper) Promise(time.Time)  {}               // no one looks whether this guard is late
func (k *keeper) Guards() int        { return 1 }     // it leaves the other guards of the node out of its account
func (k *keeper) Leased() bool       { return true }  // the keeper ends its guard
func (k *keeper) Published() bool    { return true }  // there is no recorder
func (k *keeper) Member(string) bool { return false } // no other job shares the daemon

// TakerPlace is none: takers of a user are not counted.
func (k *keeper) TakerPlace() (*lease.TakerPlace, error) { return nil, nil }

// Save keeps the number of clients.
func (k *keeper) Save(s lease.GuardState) { k.clients.Store(int32(s.Clients)) }

// SaveRoom writes the room, for the ranks.
func (k *keeper) SaveRoom(r lease.Room) { _ = k.store.SaveRoom(k.job.ID, r) }

// gauge is the command line of the guard's gauge: gpu-usage if it is beside this program, else nvidia-smi. It is empty
// if the node has neither.
func (k *keeper) gauge(env slurm.Env) []string {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "gpu-usage")
		if unix.Access(beside, unix.X_OK) == nil {
			line := []string{beside, "--root", k.root}
			if library := firstOf(filepath.SplitList(env["LD_LIBRARY_PATH"]), "libnvidia-ml.so.1", unix.R_OK); library != "" { // the guard starts it without variables
				line = append(line, "--nvml", library)
			}
			for _, device := range k.devices {
				line = append(line, "--gpu", string(device.UUID))
			}
			return line
		}
	}
	path, err := lookUp("nvidia-smi", env)
	if err != nil {
		return nil
	}
	line := []string{itself, gaugeMode, path, env["LD_LIBRARY_PATH"]}
	for _, device := range k.devices {
		line = append(line, string(device.UUID))
	}
	return line
}

// waitForRanks waits until nothing of the ranks is left: no process has their lock, no registered process lives, the
// daemon has no client, and no process has its variables. If it cannot lock, the others tell.
func waitForRanks(alive *os.File, k *keeper) {
	for pause := firstLook; ; {
		for errors.Is(unix.Flock(int(alive.Fd()), unix.LOCK_EX), unix.EINTR) {
		}
		switch {
		case len(registered(k.dir)) > 0 || k.hasClient():
			pause = firstLook
		case k.process.Load() != nil && k.leftBehind():
			pause = min(2*pause, lastLook)
		default:
			return
		}
		_ = unix.Flock(int(alive.Fd()), unix.LOCK_UN)
		time.Sleep(pause)
	}
}

// hasClient reports whether a client of the daemon lives. The guard also sees the clients of the user's other daemons on
// the GPUs, so the daemon is asked if the guard sees any.
func (k *keeper) hasClient() bool {
	if k.clients.Load() == 0 || k.process.Load() == nil {
		return false
	}
	clients, err := k.askClients()
	lives := func(c site.Client) bool {
		stat, err := proc.ReadStat(c.PID)
		return errors.Is(err, proc.ErrSilent) || err == nil && stat.Running()
	}
	return err != nil && alive(*k.process.Load()) || slices.ContainsFunc(clients, lives)
}

// askClients asks the daemon for its clients.
func (k *keeper) askClients() ([]site.Client, error) {
	k.control.Lock()
	defer k.control.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	return k.program.Clients(ctx, k.job, k.daemon())
}

// askTime limits a question. While a quit waits for clients, the daemon does not answer.
const askTime = time.Second

// endTime limits the end of the daemon. Without clients, it takes a moment.
const endTime = 10 * time.Second

// endDaemon ends what this user runs with a daemon's folders.
func endDaemon(d lease.Daemon) error {
	if d.PipeDir == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	return mps.ControlProgram{}.Kill(ctx, lease.Job{UID: uint32(os.Getuid())}, d)
}
