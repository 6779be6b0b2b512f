// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// messages prints for the user.
type messages struct {
	out    io.Writer
	launch func() (string, error) // the launch's name
	folder string                 // the exchange folder of the job's ranks, "" if there is none
	rank   int                    // the rank's number on the node
}

func (r *run) messages() messages {
	return messages{r.Err, r.launchID, r.ticket.ExchangeDir, r.rank.Task.LocalRank}
}

// print prints a message in a line.
func (m messages) print(message error) {
	fmt.Fprintf(m.out, "mpirun-wrap: %s\n", words.OneLine(message))
}

// once prints the message about a thing, unless another rank of the launch on this node has printed one about it.
func (m messages) once(thing string, message error) {
	launch, err := m.launch()
	if err != nil && m.rank == 0 || err == nil && oncePerNode(m.folder, launch, thing, m.rank) {
		m.print(message)
	}
}

// waits returns the function that prints once why the ranks wait.
func (m messages) waits(thing string) func(why string) {
	return func(why string) { m.once(thing, errors.New(why)) }
}

// remark prints that the ranks get another share than they asked for, that their memory may not be available, or that
// a variable is misspelt. Ranks with the same options print each message once.
func (m messages) remark(env slurm.Env, placement *Placement, rank Rank) {
	options := rank.Options
	if why := unshared(env, placement, rank); why != "" {
		m.once("unshared", errors.New(why))
	}
	for _, name := range unknownVariables(env) {
		advice := words.Suggest("", name, variableNames(), "mpirun-wrap")
		m.once("variable "+name, fmt.Errorf("ignoring variable %s: no flag has it: %s", name, advice))
	}
	for _, ignored := range placement.ignored(env) {
		m.once(ignored, errors.New("ignoring "+ignored))
	}
	if placement.Remark != "" {
		m.once("share "+options.Share.String(), errors.New(placement.Remark))
	}
	if placement.MemRemark != "" {
		m.once("memory "+options.Memory.String(), errors.New(placement.MemRemark))
	}
}

// unshared returns why ranks do not share GPUs although their number or their job lets one expect it, "" if they do.
func unshared(env slurm.Env, placement *Placement, rank Rank) string {
	tasks, err := launch.TasksOnNode(env)
	switch alone := placement.RanksOnGPU == 1 && rank.Options.Slots == 0; {
	case alone && err == nil && tasks > 1 && byItself(rank.Task):
		return fmt.Sprintf("this starts one process, and the job has %d tasks on this node: srun mpirun-wrap starts one for each", tasks)
	case alone && rank.Task.LocalSize > 1 && rank.Binding.GPUsPerTask > 0:
		return fmt.Sprintf("each of the %d ranks has a GPU of its own, so none is shared: --gpus=N without --gpus-per-task shares them",
			rank.Task.LocalSize)
	}
	return ""
}

// ignored returns the user's own variables of CUDA that the placement replaces, with what to do. TaskProlog has set the
// variables of a process whose pipe folder is the daemon's, and Slurm or TaskProlog a list of all GPUs. For gres/mps, Slurm
// sets the percentage.
func (p *Placement) ignored(env slurm.Env) (all []string) {
	pipe := env["CUDA_MPS_PIPE_DIRECTORY"]
	other := pipe != p.Daemon.PipeDir
	theirs := func(name, advice string, ignored bool) {
		if value := env[name]; value != "" && ignored {
			all = append(all, fmt.Sprintf("%s=%s: %s", name, words.Quote(value, 60), advice))
		}
	}
	limit, visible := env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], env["CUDA_VISIBLE_DEVICES"]
	few := p.Task.StepID == "" && !p.listsAll(visible)
	theirs("CUDA_VISIBLE_DEVICES", "the rank's number chooses its GPU, see --gpu", few && (byItself(p.Task) || !p.Task.BySlurm()) && !p.pinned)
	theirs("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "give --mem, like --mem=8G", !strings.Contains(limit, "-") && (other || !p.isScripts(limit)))
	theirs("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "give --share, like --share=25%", other && !p.Ticket.Part.Shared())
	theirs("CUDA_MPS_PIPE_DIRECTORY", "the job has an MPS daemon", other && !strings.Contains(pipe, "/slurm-mps"))
	return all
}

// isScripts reports whether limits of memory are what TaskProlog gives the script of a job on several nodes: each of the
// daemon's GPUs by number.
func (p *Placement) isScripts(limits string) bool {
	for i := range p.Daemon.Devices {
		entry, rest, _ := strings.Cut(limits, ",")
		size, ok := strings.CutPrefix(entry, strconv.Itoa(i)+"=")
		if !ok || strings.Trim(size, "0123456789") != "M" {
			return false
		}
		limits = rest
	}
	return limits == ""
}

// listsAll reports whether a list has as many GPUs as the job, by number or by UUID, as Slurm's and TaskProlog's do. The
// script may have put them in another order. A MIG instance may have another name there.
func (p *Placement) listsAll(list string) bool {
	named := func(entry string) bool {
		return slices.ContainsFunc(p.Ticket.Devices, func(d lease.TicketDevice) bool { return string(d.UUID) == entry })
	}
	entries := map[string]bool{}
	for entry := range strings.SplitSeq(list, ",") {
		if strings.Trim(entry, "0123456789") != "" && !strings.HasPrefix(entry, "MIG-") && !named(entry) {
			return false
		}
		entries[entry] = true
	}
	return len(entries) >= len(p.Ticket.Devices)
}

// warnOfNeighbour prints one sentence if several processes of the job run as "rank 0 of 1" on the same GPU, and one if
// some there have slots and some have none.
func (m messages) warnOfNeighbour(placement *Placement) {
	kind := map[bool]string{false: "noslot", true: "slotted"}
	slotted := placement.Task.Source == launch.SourceSlot
	if m.folder == "" {
		return
	}
	another := func(pid int) bool { return pid >= 0 && !ancestors(os.Getpid())[pid] }
	placement.neighbour(kind[slotted], true)
	if another(placement.neighbour(kind[!slotted], false)) {
		m.once("slotted", errors.New("some processes of this job on this GPU have slots and some have none, "+
			"so they have more than the GPU together: give all of them the same --slots=N (or set SLURM_MPS_SLOTS=N)"))
	} else if !slotted && placement.Task.LocalSize == 1 && another(placement.neighbour("alone", true)) {
		m.once("neighbour", errors.New("another process of this job runs on the same GPU, and each has the whole share: "+
			"to divide it, give all of them --slots=N (or set SLURM_MPS_SLOTS=N)"))
	}
}

// complain prints why the rank cannot run. All ranks of its launch on this node with the same reason print it once.
// Each rank with --local-rank prints it, because the program that started it may read each rank's output. No rank prints
// a reason that its task prolog has printed, except on a terminal, where it may have left the screen.
func (r *run) complain(err error) {
	r.readTask()
	m, reason := r.messages(), reasonOf(err, r.task)
	if told(r.told, r.Env, reason) && !osfile.IsTerminal(r.Err) {
		return
	}
	launch, noLaunch := r.launchID()
	if noLaunch != nil || r.Options.LocalSize > 0 || r.taskErr == nil && r.task.LocalSize == 1 {
		m.print(err)
		return
	}
	printOnce(strings.Join([]string{r.Env["SLURM_JOB_ID"], launch, reason}, " "), func() {
		m.print(fmt.Errorf("%w (printed once for this node)", err))
	})
}

// oncePerNode reports whether this rank is the first of its launch on this node to call it with thing. The folder is
// the ranks' exchange folder; without one, rank 0 is the first.
func oncePerNode(folder, launch, thing string, rank int) bool {
	if folder == "" {
		return rank == 0
	}
	first, err := firstIn(filepath.Join(folder, "printed"), launch+"."+thing)
	return first || err != nil && rank == 0
}

// maxPrinted limits the names in the table of what was printed. A launch after as many others may print a second time.
const maxPrinted = 4096

// firstIn reports whether a name is not in the table of a file, and puts it there. The table has hashes, so the file has
// a bound, and a name may have any bytes.
func firstIn(path, name string) (bool, error) {
	hash := fnv.New64a()
	_, _ = io.WriteString(hash, name)
	sum := hash.Sum64() | 1 // a free entry is 0
	table, err := openSlotFile(path)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), launchSpread)
	defer cancel()
	if _, err := wait.Within(ctx, func() (struct{}, error) { return struct{}{}, flock(table) }); err != nil {
		return false, err // a late call ends with the process
	}
	defer table.close()
	var entry [8]byte
	at := int64(sum>>1%maxPrinted) * int64(len(entry))
	if n, err := unix.Pread(table.fd, entry[:], at); err != nil || n == len(entry) && binary.NativeEndian.Uint64(entry[:]) == sum {
		return false, err
	}
	binary.NativeEndian.PutUint64(entry[:], sum)
	_, err = unix.Pwrite(table.fd, entry[:], at)
	return err == nil, err
}

// launchSpread is the time within which a launcher starts all ranks of a node.
const launchSpread = time.Second

// printOnce calls report in one of the processes of this user on this node that call it with the same name within a
// second. The others return when it has returned.
//
// The first process binds an abstract socket, which needs no folder and leaves nothing behind: most errors come
// before a rank knows its job's folder. The socket listens when report is done, so a process that can connect need
// not report. In any doubt a process reports, because no launch may fail in silence.
func printOnce(name string, report func()) {
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		report()
		return
	}
	defer unix.Close(socket)
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d %s", os.Getuid(), name)
	address := &unix.SockaddrUnix{Name: fmt.Sprintf("@slurm-mps-%x", hash.Sum64())}
	ctx, cancel := context.WithTimeout(context.Background(), launchSpread)
	defer cancel()
	for {
		err := unix.Bind(socket, address)
		if err == nil {
			report()
			if unix.Listen(socket, unix.SOMAXCONN) == nil {
				<-ctx.Done() // later ranks must find the socket
			}
			return
		}
		if errors.Is(err, unix.EADDRINUSE) && printed(socket, address) {
			return
		}
		if !errors.Is(err, unix.EADDRINUSE) || !wait.Sleep(ctx, time.Millisecond) {
			report()
			return
		}
	}
}

// printed reports whether a process of this user listens at the address.
func printed(socket int, address unix.Sockaddr) bool {
	if err := unix.Connect(socket, address); err != nil {
		return false
	}
	peer, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && int(peer.Uid) == os.Getuid()
}

// toldVariable is how a task prolog tells mpirun-wrap which reason it has printed. The value is a hash of the reason and
// the step. mpirun-wrap does not print that reason again, and removes the variable. It is not an option of a user.
const toldVariable = "SLURM_MPS_TOLD"

// reasonOf is the text of an error without the rank's number, so that all ranks that fail alike have the same one.
func reasonOf(err error, task launch.Task) string {
	return strings.Replace(err.Error(), fmt.Sprintf("rank %d ", task.LocalRank), "", 1)
}

// hashOf is the value of toldVariable for a reason in a step. The step is SLURM_STEP_ID as Slurm sets it.
func hashOf(env slurm.Env, step, reason string) string {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s %s %s", env["SLURM_JOB_ID"], step, reason)
	return fmt.Sprintf("%016x", hash.Sum64())
}

// told reports whether the task prolog of this step has printed the reason, or that of the batch script, whose steps
// inherit the variable. The value of another step does not count, because a shell of srun --pty may be hours old.
func told(value string, env slurm.Env, reason string) bool {
	return value != "" && (value == hashOf(env, env["SLURM_STEP_ID"], reason) || toldByBatch(value, env, reason))
}

// toldByBatch is told for the batch script alone. Its SLURM_STEP_ID is absent, and -5 with Slurm 26.05.
func toldByBatch(value string, env slurm.Env, reason string) bool {
	return value == hashOf(env, "", reason) || value == hashOf(env, "-5", reason)
}
