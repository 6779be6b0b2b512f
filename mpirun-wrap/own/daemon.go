// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/driver"
	"github.com/slurm-mps/slurm-mps/site/guard"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/witness"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// serve starts the daemon and the guard. A daemon that an earlier keeper of the step has started is taken over.
func (k *keeper) serve(env slurm.Env) (g *guard.Guard, err error) {
	if k.devices, err = usable(k.root, env); err != nil {
		return nil, err
	}
	path, err := lookUp("nvidia-cuda-mps-control", env)
	if err != nil {
		return nil, fmt.Errorf("cannot start an MPS daemon: %w", err)
	}
	k.program = mps.ControlProgram{Path: path, LibraryPath: env["LD_LIBRARY_PATH"], IgnoreSignals: endSignals, AsIs: true}
	k.folders.Devices = site.UUIDs(k.devices)
	if earlier := k.process.Load(); earlier == nil || !alive(*earlier) {
		k.process.Store(nil)
		if err := k.endOrphans(); err != nil {
			return nil, err
		}
		removeStale(context.Background(), k.root, k.program)
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
	k.tell(k.newTicket())
	return g, nil
}

// startDaemon starts the daemon and its server. It tries again if the daemon was killed at its start, or if none could
// start: a child of a killed keeper may have become a daemon with these folders after serve had looked for one.
func (k *keeper) startDaemon() error {
	err := k.startOnce()
	if started := k.process.Load(); err == nil || started != nil && alive(*started) {
		return err
	}
	if left := k.endOrphans(); left != nil {
		return errors.Join(err, left)
	}
	return k.startOnce()
}

// startOnce returns when the daemon's server runs.
func (k *keeper) startOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), joinTime/2)
	defer cancel()
	k.started = time.Now()
	k.control.Lock()
	started, err := k.program.Start(ctx, k.job, k.folders)
	k.control.Unlock()
	if err != nil {
		return err
	}
	k.process.Store(&started)
	k.keepRecord(record{Daemon: &started})
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
			k.tell(nil)
			waitServers(ctx, k.folders.PipeDir)
			if err := k.startAgain(ctx); err != nil {
				k.refuse(err)
				return
			}
			k.tell(k.newTicket())
		}
	}()
	return func() { cancel(); <-ended }
}

// restartPause is the least time between two starts of a daemon. Something may end each one at once.
const restartPause = time.Second

// startAgain starts the daemon again, unless its folder has gone.
func (k *keeper) startAgain(ctx context.Context) error {
	if err := k.checkFolder(); err != nil {
		return err
	}
	wait.Sleep(ctx, restartPause-time.Since(k.started))
	return k.startDaemon()
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

// newTicket is what the ranks get. Slurm's positions of the GPUs are not known, so ranks that Slurm binds to some of them
// find these by CUDA_VISIBLE_DEVICES.
func (k *keeper) newTicket() *lease.Ticket {
	t := &lease.Ticket{
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

// endOrphans kills the daemons of earlier keepers of this step, which have this keeper or its supervisor for a parent.
func (k *keeper) endOrphans() error {
	var left error
	for range maxOrphans {
		left = nil
		all, err := mps.FindAll(context.Background())
		if err != nil {
			return fmt.Errorf("cannot look for an earlier daemon: %w", err)
		}
		for _, p := range all {
			if strings.HasPrefix(p.PipeDir, k.folder.Name()+"/") && (p.Parent == os.Getpid() || p.Parent == os.Getppid()) {
				left = errors.Join(fmt.Errorf("cannot end an earlier daemon: %v does not end", p.Process), p.Kill(unix.SIGKILL))
			}
		}
		if left == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return left
}

// maxOrphans limits how often orphans are looked for, 10 ms apart.
const maxOrphans = 200
