// SPDX-License-Identifier: Apache-2.0

// Package own gives a user's ranks an MPS daemon without a prolog: mpirun-wrap --own. The daemon, its guard and all of
// their files are the user's, and last as long as the ranks.
//
//	rank ──▶ connect ──refused──▶ bind, start the supervisor ──▶ keeper: folder, daemon, guard
//	            │                                                  │
//	            └──▶ hello ──▶ answer: ticket, life ◀──────────────┘ ──▶ no life is left: end the daemon, remove the folder
//
// The ranks of a step meet at a socket (meet.go). Its name is the same for all ranks that share a daemon: those of one
// step, or of one batch script, with the same GPUs. A rank and all that it starts keep a descriptor, its life, and the
// kernel tells the keeper when the last one is closed, however its holder ended. So no file or pid has to be believed.
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
	key  string // in the name at which its ranks meet
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
	if err := checkOrder(devices, env); err != nil {
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

// member is a rank's part in a step.
type member struct {
	answer
	Store  *lease.Store
	step   step
	life   *os.File // while the process or a child has it open, the daemon lives
	starts int      // of the keeper, by this rank
	unseen string   // a folder that this rank has been told, and does not see
}

// joinTime is the maximum time until a rank is served. The daemon and its server start in 0.3 s on an idle node.
const joinTime = 60 * time.Second

// joinInTime makes this process a member of the step, and starts the step's keeper if none runs. It returns when MPS serves,
// or when the keeper has said why it does not: then the ticket has a refusal.
func joinInTime(ctx context.Context, step step) (*member, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTime+joinTime/4) // the keeper's own limit comes first, with a reason
	defer cancel()
	m := &member{step: step}
	for {
		err := m.join(ctx)
		switch {
		case err == nil:
			return m, nil
		case !errors.Is(err, errEnding):
			return nil, err
		case !wait.Sleep(ctx, time.Millisecond):
			return nil, fmt.Errorf("cannot use MPS: nothing answers at %s: %w", step.address().Name, err)
		}
	}
}

// join connects with the keeper once, and starts it if there is none.
func (m *member) join(ctx context.Context) error {
	address := m.step.address()
	conn, err := connect(ctx, address)
	if errors.Is(err, errEnding) {
		if err = m.startKeeper(address); err == nil {
			conn, err = connect(ctx, address)
		}
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := send(conn, hello{}, nil); err != nil {
		return errEnding
	}
	var got answer
	life, err := receive(conn, &got)
	if errors.Is(err, errEnding) {
		return err
	}
	if err != nil {
		return fmt.Errorf("cannot read the answer of this step's keeper: %w", err)
	}
	return m.take(got, life)
}

// startKeeper starts the step's keeper. Until this rank has its life from the keeper, it keeps the first one.
func (m *member) startKeeper(address *unix.SockaddrUnix) error {
	listener, err := listen(address)
	if err != nil {
		return err
	}
	defer listener.Close()
	if m.starts++; m.starts > maxStarts {
		return fmt.Errorf("cannot use MPS: the keeper of this step's daemon was started %d times, and something has killed each one before it answered "+
			"(a limit of ulimit -a?)", maxStarts)
	}
	life, err := startSupervisor(m.step, listener)
	if err != nil {
		return err
	}
	m.life = life
	return nil
}

// maxStarts limits how often a rank starts the keeper of its step. Each one has a folder, which a killed one leaves.
const maxStarts = 3

// take takes an answer. The ticket is refused if this process does not see the step's folder: it is in a container.
func (m *member) take(got answer, life *os.File) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	if m.life != nil {
		m.life.Close()
	}
	m.answer, m.life, m.Store = got, life, lease.ReadPrivate(got.Dir, boot)
	if got.Ticket.RefusalReason == "" && inode(got.Dir) != got.Inode {
		if m.unseen != got.Dir { // its keeper may be about to end, and has removed it
			m.unseen = got.Dir
			return errEnding
		}
		const form = "cannot use MPS: this container does not show %s, the folder of this step's daemon: bind %s into the container, " +
			"or start mpirun-wrap outside of it"
		return fmt.Errorf(form, got.Dir, filepath.Dir(got.Dir))
	}
	return nil
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

// others is an error if another MPS server runs on the node, one of this user if there is one: it may be of the same
// step, in a container with a /tmp of its own. Which GPU a server of another user has is not known.
func (m *member) others() error {
	all, _ := mps.FindAll(context.Background())
	all = slices.DeleteFunc(all, func(p mps.Process) bool {
		if p.Role != mps.RoleServer || strings.HasPrefix(p.PipeDir, m.Dir+"/") {
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
	if r.member.starts > 0 {
		if err := r.member.others(); err != nil {
			warn("others", err)
		}
	}
	if err := r.member.allowGuard(); err != nil {
		warn("unguarded", err)
	}
	if why := hiddenBy(program); why != "" {
		warn("hidden", fmt.Errorf("%s is not guarded if it uses CUDA itself, because %s: its end may kill its neighbours", program, why))
		r.member.sayHidden()
	}
	_, err := unix.FcntlInt(r.member.life.Fd(), unix.F_SETFD, 0)
	return err
}

// sayHidden tells the keeper that it need not say again that this process is hidden.
func (m *member) sayHidden() {
	ctx, cancel := context.WithTimeout(context.Background(), helloTime)
	defer cancel()
	if conn, err := connect(ctx, m.step.address()); err == nil {
		_ = send(conn, hello{Hidden: true}, nil)
		conn.Close()
	}
}

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
