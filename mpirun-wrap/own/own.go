// SPDX-License-Identifier: Apache-2.0

// Package own gives a user's ranks an MPS daemon without a prolog: mpirun-wrap --own. The daemon, its guard and all of
// their files are the user's, and last as long as the ranks.
//
//	rank ──▶ folder ──▶ alive (LOCK_SH, kept over exec) ──▶ keeper (LOCK_EX)? ──taken──▶ ticket ──▶ placed
//	                                                             │ free: start the keeper
//	                                                             ▼
//	         supervisor ──▶ keeper: daemon, guard, ticket ──▶ alive (LOCK_EX: no rank is left) ──▶ remove the folder, end all
//
// The folder is slurm-mps-UID/KEY in /tmp or /dev/shm (place.go). The key is the same for all ranks that share a
// daemon: those of one step, or of one batch script, with the same GPUs. The kernel frees a lock when its holders have
// ended, however they end, so no file or pid has to be believed.
package own

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/driver"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// step is a set of ranks that share a daemon.
type step struct {
	Root string // put before the paths of the node's files; "" outside of tests
	Job  uint32 // SLURM_JOB_ID, or noJob
	env  []string
	key  string // the name of its folder
}

// noJob is the number of a step's job outside of Slurm.
const noJob = 1

// newStep returns the step of a rank, from its environment and the GPUs that it may open.
func newStep(root string, environ []string, task launch.Task, binding launch.Binding) (step, error) {
	env := slurm.NewEnv(environ)
	if task.BySlurm() && task.LocalSize > 1 && (binding.OwnGPUs > 0 || binding.TasksPerGPU > 0) {
		return step{}, errors.New("cannot use --own: Slurm gives each task of this step GPUs of its own: ask for --gpus-per-node or --gres=gpu:N " +
			"in place of --gpus-per-task, --ntasks-per-gpu and --gpu-bind, and mpirun-wrap gives each rank its GPU")
	}
	devices, err := usable(root, env)
	if err != nil {
		return step{}, err
	}
	key, err := key(root, env, task, devices)
	if err != nil {
		return step{}, err
	}
	return step{Root: root, Job: cmp.Or(task.JobID, noJob), env: environ, key: key}, nil
}

// usable returns the GPUs that a rank with this environment may use.
func usable(root string, env slurm.Env) ([]site.Device, error) {
	devices, err := driver.Node{Root: root}.GPUs()
	if err != nil {
		return nil, err
	}
	if list, given := env["CUDA_VISIBLE_DEVICES"]; given {
		if devices, err = visible(devices, list); err != nil {
			return nil, err
		}
	}
	for _, device := range devices {
		if device.MIGMode {
			return nil, fmt.Errorf("cannot start an MPS daemon: %s is divided into MIG instances, and --own serves whole GPUs", device.UUID)
		}
	}
	return devices, nil
}

// key identifies a step on this node in this boot.
func key(root string, env slurm.Env, task launch.Task, devices []site.Device) (string, error) {
	boot, err := proc.BootID()
	if err != nil {
		return "", err
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot read host name: %w", err)
	}
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s\n%s\n%s\n%s\n%d\n%s\n%s\n", root, boot, host, env["SLURM_CLUSTER_NAME"], task.JobID, task.StepID, env["SLURMD_NODENAME"])
	all := site.UUIDs(devices)
	slices.Sort(all) // each rank may have an order of its own
	for _, uuid := range all {
		fmt.Fprintln(hash, uuid)
	}
	return fmt.Sprintf("%016x", hash.Sum64()), nil
}

// member is a rank's part in a step. While the process or a child has its file open, the daemon lives.
type member struct {
	Ticket  lease.Ticket
	Store   *lease.Store
	dir     string
	alive   *os.File
	started bool // this rank has started the keeper
}

// joinTime is the maximum time until a rank is served. The daemon and its server start in 0.3 s on an idle node.
const joinTime = 60 * time.Second

// errEnding means that the step's keeper removes its folder at this moment.
var errEnding = errors.New("the daemon of earlier ranks ends")

// joinInTime makes this process a member of the step, and starts the step's keeper if none runs. It returns when MPS serves,
// or when the keeper has written why it does not: then the ticket has a refusal.
func joinInTime(ctx context.Context, step step) (*member, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	for {
		member, err := join(ctx, step)
		if err == nil || !errors.Is(err, errEnding) || !wait.Sleep(ctx, time.Millisecond) {
			return member, err
		}
	}
}

func join(ctx context.Context, step step) (*member, error) {
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	dir, err := openFolder(ctx, step)
	if err != nil {
		return nil, err
	}
	alive, err := openLock(dir, aliveLock)
	if err != nil {
		return nil, err
	}
	m := &member{Store: lease.ReadPrivate(dir, boot), dir: dir, alive: alive}
	if err := m.enter(ctx, step); err != nil {
		alive.Close()
		return nil, err
	}
	return m, nil
}

// enter takes the rank's lock and waits for the ticket. Pauses grow with the wait: many ranks would delay the daemon.
func (m *member) enter(ctx context.Context, step step) error {
	switch err := unix.Flock(int(m.alive.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return errEnding
	case err != nil:
		return fmt.Errorf("cannot lock %s: %w", m.alive.Name(), err)
	case !isAt(m.alive): // the folder was removed before the lock
		return errEnding
	}
	for pause := time.Millisecond; ; pause = min(pause+pause/8, 100*time.Millisecond) {
		if err := m.keep(step); err != nil {
			return err
		}
		ticket, err := m.Store.ReadTicket(step.Job)
		why := ""
		if err == nil && serves(ticket) && quits(ticket.Daemons[0]) {
			why = ": a script told it to quit, and it waits for its clients: leave the quit out"
		} else if err == nil && (ticket.RefusalReason != "" || serves(ticket)) {
			m.Ticket = ticket
			return nil
		}
		if !wait.Sleep(ctx, pause) {
			return fmt.Errorf("cannot use MPS: the daemon of these ranks does not serve within %v%s", joinTime, why)
		}
	}
}

// quits reports whether a daemon of this user was told to quit. It then waits for its clients, refuses new ones with
// error 805, and answers no question. Its keeper starts the next one.
func quits(d lease.Daemon) bool {
	file, size, err := serverlog.Open(d.LogDir, "control.log", uint32(os.Getuid()))
	if err != nil {
		return false
	}
	defer file.Close()
	tail := make([]byte, min(size, 64<<10)) // clients that are refused write lines, too
	n, _ := file.ReadAt(tail, size-int64(len(tail)))
	return bytes.Contains(tail[:n], fmt.Appendf(nil, " %d] Cmd:quit", d.Proc.PID))
}

func serves(ticket lease.Ticket) bool {
	return len(ticket.Daemons) > 0 && alive(ticket.Daemons[0].Proc)
}

// keep starts the step's keeper if none runs. The keeper inherits the lock, so there is no moment without.
func (m *member) keep(step step) error {
	lock, err := openLock(m.dir, keeperLock)
	if err != nil {
		return err
	}
	defer lock.Close()
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot lock %s: %w", lock.Name(), err)
	}
	removeStale(step.Root)
	m.started = true
	return startKeeper(m.dir, step, lock)
}

// others is an error if another MPS server runs on the node, one of this user if there is one: it may be of the same
// step, in a container with a /tmp of its own. Which GPU a server of another user has is not known.
func (m *member) others() error {
	all, _ := mps.FindAll(context.Background())
	all = slices.DeleteFunc(all, func(p mps.Process) bool {
		if p.Role != mps.RoleServer || strings.HasPrefix(p.PipeDir, m.dir+"/") {
			return true
		}
		_, err := os.Lstat(p.PipeDir) // if it ends, its keeper has removed the folder
		return p.PipeDir != "" && p.UID == uint32(os.Getuid()) && errors.Is(err, os.ErrNotExist)
	})
	return othersError(all, uint32(os.Getuid()))
}

// othersError is the error about other servers, nil for none.
func othersError(servers []mps.Process, uid uint32) error {
	if len(servers) == 0 {
		return nil
	}
	other, whose := servers[0], "an MPS server of uid "+strconv.FormatUint(uint64(servers[0].UID), 10)
	if i := slices.IndexFunc(servers, func(p mps.Process) bool { return p.UID == uid }); i >= 0 {
		other, whose = servers[i], "another MPS server of yours"
	}
	const form = "%s (pid %d) runs on this node: on the same GPU, its clients and these ranks take turns"
	return fmt.Errorf(form, whose, other.PID)
}

// Rank is a rank that may join a step. It is an MPS of package mpirunwrap.
type Rank struct{ member *member }

// Join joins the step of a rank.
func (r *Rank) Join(
	ctx context.Context, root string, environ []string, task launch.Task, binding launch.Binding,
) (lease.Ticket, *lease.Store, error) {
	step, err := newStep(root, environ, task, binding)
	if err != nil {
		return lease.Ticket{}, nil, err
	}
	if r.member, err = joinInTime(ctx, step); err != nil {
		return lease.Ticket{}, nil, err
	}
	return r.member.Ticket, r.member.Store, nil
}

// ServerStatus asks a daemon for the state of a server.
func (r *Rank) ServerStatus(ctx context.Context, ticket lease.Ticket, daemon lease.Daemon, server int) (string, error) {
	program := mps.ControlProgram{Path: ticket.ControlProgram.Path, LibraryPath: ticket.ControlProgram.LibraryPath, AsIs: true}
	return program.ServerStatus(ctx, ticket.Job, daemon, server)
}

// Stay keeps the daemon for the program that a rank becomes. A rank that has not joined a step does nothing.
func (r *Rank) Stay(program string, warn func(thing string, err error)) error {
	if r.member == nil {
		return nil
	}
	if r.member.started {
		if err := r.member.others(); err != nil {
			warn("others", err)
		}
	}
	if err := r.member.allowGuard(); err != nil {
		warn("unguarded", err)
	}
	if why := hiddenBy(program); why != "" {
		warn("hidden", fmt.Errorf("%s is not guarded if it uses CUDA itself, because %s: its end may kill its neighbours", program, why))
		_ = os.WriteFile(filepath.Join(r.member.dir, hiddenLine), nil, 0o600) // for the keeper
	}
	return r.member.stay()
}

// stay registers this process, and keeps its lock for the program that it becomes. A program may close files that it
// has not opened, so the keeper also looks for the process.
func (m *member) stay() error {
	self, err := proc.Current()
	if err != nil {
		return err
	}
	path := filepath.Join(m.dir, ranksFolder, strconv.Itoa(self.PID))
	if err := os.WriteFile(path, strconv.AppendUint(nil, self.Start, 10), 0o600); err != nil {
		return fmt.Errorf("cannot register rank: %w", err)
	}
	_, err = unix.FcntlInt(m.alive.Fd(), unix.F_SETFD, 0)
	return err
}

// hiddenLine is in the step's folder when a rank has printed that its program is hidden.
const hiddenLine = "hidden"

// hiddenBy returns why the kernel will show only root the files of a program's processes, so that no guard of the user
// can take them (fs/exec.c, would_dump; security/commoncap.c), or "". Whether the program uses CUDA is not known.
func hiddenBy(path string) string {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil {
		return ""
	}
	if unix.Access(path, unix.R_OK) != nil {
		return "you may not read its file (ask for chmod a+r)"
	}
	uid := st.Mode&unix.S_ISUID != 0 && st.Uid != uint32(os.Geteuid())
	gid := st.Mode&unix.S_ISGID != 0 && st.Mode&unix.S_IXGRP != 0 && st.Gid != uint32(os.Getegid())
	size, err := unix.Getxattr(path, "security.capability", nil)
	capable := err == nil && size > 0
	if !uid && !gid && !capable || ignoresPrivileges(path) || isScript(path) {
		return ""
	}
	if capable {
		return "its file has capabilities (run a copy without)"
	}
	return "its file has the set-user-ID or set-group-ID bit (run a copy without)"
}

// ignoresPrivileges reports whether the kernel gives a program no rights of its file.
func ignoresPrivileges(path string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) == nil && int64(fs.Flags)&unix.ST_NOSUID != 0 {
		return true
	}
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return err == nil && set != 0
}

// isScript reports whether a file begins with "#!". Its interpreter has no rights of it.
func isScript(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	var magic [2]byte
	n, _ := file.Read(magic[:])
	return string(magic[:n]) == "#!"
}
