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
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/guard"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"golang.org/x/sys/unix"
)

// keeper starts, guards and ends the daemon of a step, and answers its ranks.
type keeper struct {
	root    string
	folder  *os.File // the step's, locked
	life    *os.File // hangs up when no process of the ranks has its other end
	state   state
	devices []site.Device
	program mps.ControlProgram
	job     lease.Job
	folders lease.Daemon // the daemon without its process
	process atomic.Pointer[proc.Process]
	started time.Time  // when the daemon was started last
	control sync.Mutex // of the control program while the daemon is started or asked: see ControlProgram.Start
	store   *lease.Store
	clients atomic.Int32                 // that the guard sees
	ticket  atomic.Pointer[lease.Ticket] // what the ranks get, nil while no daemon serves
	waiting atomic.Int32                 // ranks that wait for the ticket

	mutex sync.Mutex // of ranks and state
	ranks map[int]rank
}

// daemon is the daemon that was started last.
func (k *keeper) daemon() lease.Daemon {
	d := k.folders
	if p := k.process.Load(); p != nil {
		d.Proc = *p
	}
	return d
}

// keep is the keeper of a step. If MPS cannot be used, it tells the ranks why, until they have ended.
func keep(dir, job, root string, env slurm.Env) error {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	number, err := strconv.ParseUint(job, 10, 32)
	if err != nil {
		return err
	}
	k := &keeper{root: root, ranks: map[int]rank{}}
	listener := inherited(listenerFD, "listener")
	k.life, k.state, k.folder = inherited(lifeFD, "life"), state{inherited(stateFD, "state")}, inherited(folderFD, dir)
	k.job = lease.Job{ID: uint32(number), UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), User: strconv.Itoa(os.Getuid())}
	refusal := k.resume()
	go k.listen(listener)
	var g *guard.Guard
	if err = refusal; err == nil {
		err = k.makeStore()
	}
	if err == nil {
		g, err = k.serve(env)
	}
	if err != nil {
		k.refuse(err)
	}
	stop := k.serveOn()
	k.waitForRanks()
	_ = unix.Shutdown(int(listener.Fd()), unix.SHUT_RDWR) // from here on, new ranks wait until the name is free
	stop()
	return errors.Join(err, k.end(g))
}

// resume takes over what an earlier keeper has left. The error says why no keeper can serve this step.
func (k *keeper) resume() (refusal error) {
	for _, r := range k.state.read() {
		switch {
		case r.Rank != nil:
			k.ranks[r.Rank.PID] = *r.Rank
		case r.Daemon != nil:
			k.process.Store(r.Daemon)
		case r.Refusal != "":
			refusal = errors.New(r.Refusal)
		}
	}
	return refusal
}

// makeStore makes the folders of the daemon and the ranks.
func (k *keeper) makeStore() error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	k.store, err = lease.OpenPrivate(k.folder.Name(), boot, k.job.ID)
	if err != nil {
		return err
	}
	daemon := k.store.DaemonDir(k.job.ID, 0)
	k.folders = lease.Daemon{PipeDir: filepath.Join(daemon, "pipe"), LogDir: filepath.Join(daemon, "log")}
	return nil
}

// checkFolder is an error if the files that the ranks and the daemon meet in have gone.
func (k *keeper) checkFolder() error {
	if isAt(k.folder) && inode(k.folders.PipeDir) != 0 && inode(k.store.ExchangeDir(k.job.ID)) != 0 {
		return nil
	}
	return k.removedError()
}

func (k *keeper) removedError() error {
	return fmt.Errorf("cannot use MPS any more: something has removed %s, the folder of these ranks' daemon: let it leave %s* alone, "+
		"and start the step again", k.folder.Name(), filepath.Join(filepath.Dir(k.folder.Name()), prefix()))
}

// end ends the daemon. Its folder goes first, because Slurm kills a step's processes soon after its tasks.
func (k *keeper) end(g *guard.Guard) (err error) {
	if k.store != nil {
		err = os.RemoveAll(k.folder.Name())
	}
	if g != nil {
		g.Stop()
	}
	started := k.process.Load()
	for tries := 0; started != nil && tries < endTries; tries++ {
		failed := started.Kill(unix.SIGKILL)
		if !errors.Is(failed, proc.ErrSilent) {
			err = errors.Join(err, failed)
			break
		}
	}
	if k.store == nil {
		return err
	}
	err = errors.Join(err, k.endOrphans(), os.RemoveAll(k.folder.Name()))
	removeStale(context.Background(), k.root, k.program) // of a killed keeper whose ranks have ended by now
	return err
}

// endTries limits how often a daemon is killed that does not answer for a second each time.
const endTries = 10

// tell says what the ranks get from now on.
func (k *keeper) tell(ticket *lease.Ticket) { k.ticket.Store(ticket) }

// refuse tells the ranks why they have no MPS.
func (k *keeper) refuse(why error) { k.tell(k.refusal(why)) }

func (k *keeper) refusal(why error) *lease.Ticket {
	return &lease.Ticket{Job: k.job, RefusalReason: why.Error()}
}

// listen answers ranks until the socket is shut down.
func (k *keeper) listen(listener *os.File) {
	means := cannotGuard()
	for {
		fd, _, err := unix.Accept4(int(listener.Fd()), unix.SOCK_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINVAL):
			return
		case err != nil: // no descriptor is free, or the rank has gone
			time.Sleep(time.Millisecond)
			continue
		}
		k.welcome(os.NewFile(uintptr(fd), "rank"), means)
	}
}

// helloTime limits the wait for a rank's first message. Ranks send it at once.
const helloTime = time.Second

// welcome registers a rank, and answers it when a daemon serves.
func (k *keeper) welcome(conn *os.File, means string) {
	peer, err := peerOf(conn)
	if err != nil || peer.Uid != k.job.UID {
		conn.Close()
		return
	}
	var said hello
	if err = setTimeouts(conn, helloTime); err == nil {
		_, err = receive(conn, &said)
	}
	if err != nil {
		conn.Close()
		return
	}
	if err := k.register(int(peer.Pid), said); err != nil {
		_ = send(conn, answer{Ticket: *k.refusal(err)}, nil)
		conn.Close()
		return
	}
	k.waiting.Add(1)
	go func() {
		defer k.waiting.Add(-1)
		defer conn.Close()
		k.answer(conn, means)
	}()
}

// register remembers a rank.
func (k *keeper) register(pid int, said hello) error {
	if pid == 0 {
		return errors.New("cannot use MPS: this rank is in a container with processes of its own, which the keeper of this step's daemon " +
			"does not see: start mpirun-wrap outside of the container, or the container without --pid")
	}
	stat, err := proc.ReadStat(pid)
	if err != nil {
		return fmt.Errorf("cannot register rank: %w", err)
	}
	r := rank{Process: stat.Process, Hidden: said.Hidden}
	if name, _ := proc.Name(stat.Parent); slices.ContainsFunc(spawners, func(beginning string) bool { return strings.HasPrefix(name, beginning) }) {
		r.Launcher = stat.Parent
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.ranks[pid] = r
	k.state.add(record{Rank: &r})
	return nil
}

// spawners begin the names of launchers' processes that may start programs beside the ranks: Open MPI's, MPICH's and
// Slurm's.
var spawners = []string{"orted", "prted", "prterun", "orterun", "mpirun", "mpiexec", "hydra_", "slurmstepd"}

// keepRecord adds a record to the state.
func (k *keeper) keepRecord(r record) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.state.add(r)
}

// registered returns the ranks that live.
func (k *keeper) registered() (living []rank) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.removeEnded()
	for _, r := range k.ranks {
		living = append(living, r)
	}
	return living
}

// removeEnded forgets the ranks that have ended. One in the middle of an exec may not answer.
func (k *keeper) removeEnded() {
	for pid, r := range k.ranks {
		if len(proc.Left([]proc.Process{r.Process})) == 0 {
			delete(k.ranks, pid)
		}
	}
}

// answer waits until a daemon serves, or cannot, and tells a rank. Pauses grow with the wait: many ranks would delay
// the daemon.
func (k *keeper) answer(conn *os.File, means string) {
	until := time.Now().Add(joinTime)
	ticket, why := k.current()
	for pause := time.Millisecond; ticket == nil && time.Now().Before(until); pause = min(pause+pause/8, 100*time.Millisecond) {
		time.Sleep(pause)
		ticket, why = k.current()
	}
	if ticket == nil {
		ticket = k.refusal(fmt.Errorf("cannot use MPS: the daemon of these ranks does not serve within %v%s", joinTime, why))
	}
	other, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(k.life.Fd())), os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer other.Close()
	dir := k.folder.Name()
	_ = send(conn, answer{Ticket: *ticket, Dir: dir, Inode: inode(dir), Supervisor: os.Getppid(), Unguarded: means}, other)
}

// current is what a rank gets now, nil while no daemon serves.
func (k *keeper) current() (ticket *lease.Ticket, why string) {
	ticket = k.ticket.Load()
	if ticket == nil || ticket.RefusalReason != "" {
		return ticket, ""
	}
	if err := k.checkFolder(); err != nil {
		return k.refusal(err), ""
	}
	switch daemon := ticket.Daemons[0]; {
	case !alive(daemon.Proc):
		return nil, ""
	case !isSocket(filepath.Join(daemon.PipeDir, "control")):
		return k.refusal(k.removedError()), ""
	case quits(daemon):
		return nil, ": a script told it to quit, and it waits for its clients: leave the quit out"
	}
	return ticket, ""
}

// cannotGuard says why this process can take no rank's files, "" if it can. It tries the calls on itself.
func cannotGuard() string {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		defer unix.Close(self)
		var file int
		if file, err = unix.PidfdGetfd(self, int(os.Stdin.Fd()), 0); err == nil {
			unix.Close(file)
		}
	}
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.ENOSYS):
		return "its kernel is older than Linux 5.6"
	}
	return fmt.Sprintf("a filter of system calls forbids that (%v): give the container the capability SYS_PTRACE (--cap-add=SYS_PTRACE)", err)
}

// waitForRanks waits until nothing of the ranks is left: no process has their life, no registered process lives or
// waits, the daemon has no client, and no process has its variables.
func (k *keeper) waitForRanks() {
	for pause := firstLook; ; {
		hangUp := []unix.PollFd{{Fd: int32(k.life.Fd())}}
		for hangUp[0].Revents == 0 {
			_, _ = unix.Poll(hangUp, -1)
		}
		switch {
		case k.waiting.Load() > 0 || len(k.registered()) > 0 || k.hasClient():
			pause = firstLook
		case k.process.Load() != nil && k.leftBehind():
			pause = min(2*pause, lastLook)
		default:
			return
		}
		time.Sleep(pause)
	}
}
