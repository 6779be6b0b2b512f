// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// A slot is the place of one rank among n ranks of the job on the node. Processes that no launcher numbers take
// slots. A slot's file names the process that took it, and that process and its children inherit a lock of the file
// (judge, in slot_holder.go).

const (
	maxSlots = 384 // 48 clients on each of eight GPUs; each has a file in the job's file system (lease.MakeDirs)
	// slotFD is the lowest descriptor of a lock, because shell scripts use low ones for themselves.
	slotFD = 230
	// The time between two looks for a free slot doubles while a process waits, because a look at many slots costs
	// processor time. Only the first process that waits looks.
	slotPause, longestSlotPause = 5 * time.Millisecond, 100 * time.Millisecond
	// lookPause is the time between two looks at the processes that have slots.
	lookPause = 500 * time.Millisecond
	// minSlotWait is the time for the processes before this one to take their slots.
	minSlotWait = 300 * time.Millisecond
)

// slotTable is the table of the job's slots on this node. The caller holds its lock, so no other process takes a
// slot.
type slotTable struct {
	folder string
	gpus   []int              // the GPU of each slot
	usable []int              // the GPUs that this process may open
	family map[int]bool       // this process and those that started it, by process ID
	looked time.Time          // the last look at the processes that have slots
	looks  bool               // now is a look; between two looks, only locks count
	taken  map[int]slotHolder // of the last look
	left   *leftovers         // of this look, if they were needed
}

// takeSlot takes a free slot of options.Slots for the rank, on the GPU with the fewest taken slots. It returns the
// rank with the slot's place. If all slots are taken, it calls waits once, with who has them, and waits for
// options.SlotsWait. A process whose parent has a slot uses the parent's. The lock has no close-on-exec flag, so it
// lasts as long as the program.
func takeSlot(ctx context.Context, ticket lease.Ticket, rank Rank, waits func(holders string)) (Rank, error) {
	table, err := newSlotTable(ticket, rank)
	if err != nil {
		return rank, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(rank.Options.SlotsWait, minSlotWait))
	defer cancel()
	lock, err := table.lock(ctx)
	if err == nil {
		defer lock.close()
		err = table.agree(lock)
	}
	for pause := slotPause; err == nil; waits, pause = nil, min(2*pause, longestSlotPause) {
		slot, ok, err := table.take()
		if ok || err != nil {
			rank.Task.LocalRank, rank.Task.LocalSize, rank.Task.Source = slot, len(table.gpus), launch.SourceSlot
			return rank, err
		}
		if waits != nil && rank.Options.SlotsWait > minSlotWait {
			waits(table.holders())
		}
		if !wait.Sleep(ctx, pause) {
			break
		}
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		err = fmt.Errorf("cannot take a slot: all %d are taken: start fewer processes at once, or wait longer "+
			"(--slots-wait=10m); %s", len(table.gpus), table.holders())
	}
	return rank, err
}

func newSlotTable(ticket lease.Ticket, rank Rank) (slotTable, error) {
	n, choice := rank.Options.Slots, rank.Options.GPU
	switch {
	case choice != autoGPU && choice != "" && choice != cyclicGPU && choice != blockGPU:
		return slotTable{}, fmt.Errorf("cannot take a slot with --gpu=%s: a slot is on one GPU: use --gpu=cyclic or --gpu=block", choice)
	case n < 1 || n > maxSlots:
		return slotTable{}, fmt.Errorf("cannot take one of %d slots: want 1 to %d", n, maxSlots)
	case len(ticket.Devices) == 0 || ticket.ExchangeDir == "":
		return slotTable{}, fmt.Errorf("cannot take a slot: the ticket of job %d names no devices", ticket.Job.ID)
	}
	table := slotTable{folder: ticket.ExchangeDir, family: ancestors(os.Getpid())}
	table.usable, _ = boundDevices(ticket.Devices, rank.Task, rank.Binding, rank.CanOpen)
	for slot := range n {
		place := slotPosition(len(ticket.Devices), launch.Task{LocalRank: slot, LocalSize: n}, choice)
		table.gpus = append(table.gpus, place.devices[0])
	}
	return table, nil
}

// slotPosition is the position of a slot. It does not depend on the process that takes it.
func slotPosition(devices int, slot launch.Task, choice choice) position {
	groups := grouped(indices(devices), 1)
	if choice == blockGPU {
		return block(groups, slot)
	}
	return cyclic(groups, slot)
}

func (t *slotTable) path(slot int) string { return filepath.Join(t.folder, "slot."+strconv.Itoa(slot)) }

// lock locks the table. The processes that wait get it in turn.
func (t *slotTable) lock(ctx context.Context) (*slotFile, error) {
	file, err := openSlotFile(filepath.Join(t.folder, "slots"))
	if err != nil {
		return nil, err
	}
	return wait.Within(ctx, func() (*slotFile, error) { return file, flock(file) }) // a late call ends with the process
}

// flock blocks, so that the kernel wakes the processes that wait one by one. Polling of a thousand would load the
// node.
func flock(file *slotFile) error {
	err := unix.Flock(file.fd, unix.LOCK_EX)
	for errors.Is(err, unix.EINTR) {
		err = unix.Flock(file.fd, unix.LOCK_EX)
	}
	if err != nil {
		return fmt.Errorf("cannot lock %s: %w", file.path, err)
	}
	return nil
}

// agree makes sure that all processes of the job use the same number of slots, because each slot's share depends on
// it.
func (t *slotTable) agree(lock *slotFile) error {
	content, err := lock.read()
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", lock.path, err)
	}
	n, _ := strconv.Atoi(strings.TrimSpace(content))
	if n == len(t.gpus) {
		return nil
	}
	t.look()
	for slot := range min(n, maxSlots) {
		file, holder, err := t.try(slot)
		if err != nil {
			return err
		}
		if file == nil {
			return fmt.Errorf("cannot take one of %d slots: other processes of this job use %d: "+
				"give all of them the same --slots; slot %d: %v", len(t.gpus), n, slot, holder)
		}
		file.close()
	}
	return lock.write(strconv.Itoa(len(t.gpus)))
}

// take takes the usable free slot whose GPU has the fewest taken ones. ok is false if there is none.
func (t *slotTable) take() (slot int, ok bool, err error) {
	t.look()
	taken := make(map[int]int) // by GPU
	free := make(map[int]*slotFile)
	defer func() {
		for _, file := range free {
			file.close()
		}
	}()
	for slot, gpu := range t.gpus {
		file, holder, err := t.try(slot)
		switch {
		case err != nil:
			return 0, false, err
		case file != nil:
			free[slot] = file
		case t.family[holder.PID] && !holder.left || holder == slotHolder{} && t.inherits(slot):
			return slot, true, nil
		default:
			taken[gpu]++
		}
	}
	best := -1
	for slot, gpu := range t.gpus {
		if free[slot] != nil && slices.Contains(t.usable, gpu) && (best < 0 || taken[gpu] < taken[t.gpus[best]]) {
			best = slot
		}
	}
	if best < 0 {
		return 0, false, nil
	}
	return best, true, keep(free[best])
}

// inherits reports whether this process has inherited a slot's lock. In a pid namespace that a slot's program has made,
// it does not see the process that took the slot.
func (t *slotTable) inherits(slot int) (found bool) {
	var want, st unix.Stat_t
	if unix.Lstat(t.path(slot), &want) != nil {
		return false
	}
	_, _ = proc.EachDescriptor(os.Getpid(), func(_, number int) bool {
		flags, err := unix.FcntlInt(uintptr(number), unix.F_GETFD, 0)
		inherited := err == nil && flags&unix.FD_CLOEXEC == 0 // this program's own files have the flag
		found = inherited && unix.Fstat(number, &st) == nil && st.Dev == want.Dev && st.Ino == want.Ino
		return !found
	})
	return found
}

// look begins a look at the processes that have slots, if one is due.
func (t *slotTable) look() {
	if t.looks = time.Since(t.looked) >= lookPause; t.looks {
		t.looked, t.left = time.Now(), nil
		t.taken = map[int]slotHolder{}
	}
}

// try locks a slot's file. If the slot is taken, it returns who has it. A slot that only an idle process of an ended
// program has gets a new file, whose lock is free.
func (t *slotTable) try(slot int) (*slotFile, slotHolder, error) {
	file, locked, err := t.openSlot(slot)
	if err != nil {
		return nil, slotHolder{}, err
	}
	taker, known := readTaker(file, namespaces())
	holder, taken := t.judge(slot, taker, known, locked)
	if taken || locked {
		file.close()
	}
	switch {
	case taken:
		if t.looks {
			t.taken[slot] = holder
		}
		return nil, holder, nil
	case !locked:
		return file, slotHolder{}, nil
	}
	if err := os.Remove(t.path(slot)); err != nil {
		return nil, slotHolder{}, fmt.Errorf("cannot take a slot: %w", err)
	}
	file, locked, err = t.openSlot(slot)
	if err == nil && locked { // by a process that does not lock the table
		file.close()
		return nil, slotHolder{}, nil
	}
	return file, slotHolder{}, err
}

// keep writes which process takes the slot, and leaves a descriptor of the file open for the program.
func keep(file *slotFile) error {
	if err := writeTaker(file, namespaces()); err != nil {
		return err
	}
	_, err := unix.FcntlInt(uintptr(file.fd), unix.F_DUPFD, slotFD)
	if errors.Is(err, unix.EINVAL) { // the limit of descriptors is lower
		_, err = unix.FcntlInt(uintptr(file.fd), unix.F_DUPFD, 3)
	}
	if err != nil {
		return fmt.Errorf("cannot keep %s: %w", file.path, err)
	}
	return nil
}

// ancestors returns this process and those that started it.
func ancestors(pid int) map[int]bool {
	found := make(map[int]bool)
	for pid > 1 && !found[pid] {
		found[pid] = true
		stat, err := proc.ReadStat(pid)
		if err != nil {
			break
		}
		pid = stat.Parent
	}
	return found
}

// openSlotFile opens a file in the exchange folder, which is the user's. It follows no link, waits for no pipe, and takes
// no file with another name, because root may run a rank, and the user may have put a link to a file of root's there.
func openSlotFile(path string) (*slotFile, error) {
	f, st, err := openRegular(path, unix.O_RDWR|unix.O_CREAT)
	if err == nil && st.Nlink != 1 {
		f.close()
		err = fmt.Errorf("%s has another name", path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot take a slot: %w", err)
	}
	return f, nil
}

func openRegular(path string, flags int) (f *slotFile, st unix.Stat_t, err error) {
	fd, err := unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, st, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		unix.Close(fd)
	}
	return &slotFile{fd, path}, st, err
}

// slotFile is an open file in a folder of the user's. It is no os.File, because those are more work at a rank's start.
type slotFile struct {
	fd   int
	path string
}

func (f *slotFile) close() { unix.Close(f.fd) }

// read returns the content, which is short.
func (f *slotFile) read() (string, error) {
	var content [128]byte
	n, err := unix.Pread(f.fd, content[:], 0)
	return string(content[:max(n, 0)]), err
}

// write replaces the content. A write above the limit of a file's size would end the process by SIGXFSZ, because the
// wrapper catches no signal.
func (f *slotFile) write(content string) (err error) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && uint64(len(content)) > limit.Cur {
		err = fmt.Errorf("the limit of a file's size is %d bytes: raise it (ulimit -f) where you submit the job", limit.Cur)
	} else {
		_, err = unix.Pwrite(f.fd, []byte(content), 0)
	}
	if err == nil {
		err = unix.Ftruncate(f.fd, int64(len(content)))
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", f.path, err)
	}
	return nil
}

// neighbour returns the pid of a process of the job with this kind of place that runs on the same GPU: 0 if that is not
// known, and -1 for none. If there is none and record is set, this process is recorded.
func (p *Placement) neighbour(kind string, record bool) (pid int) {
	path := filepath.Join(p.Ticket.ExchangeDir, kind+"."+strconv.Itoa(p.GPU))
	if !record && unix.Access(path, unix.F_OK) != nil { // in most jobs all processes have one kind of place
		return -1
	}
	file, err := openSlotFile(path)
	if err != nil {
		return -1
	}
	defer file.close()
	busy := unix.Flock(file.fd, unix.LOCK_EX|unix.LOCK_NB)
	other, known := readTaker(file, "")
	switch {
	case record && errors.Is(busy, unix.EWOULDBLOCK):
		return 0 // it is about to be recorded
	case busy == nil && known && other.Running():
		return other.PID
	case busy == nil && record:
		_ = writeTaker(file, "") // without it, the next process prints nothing
	}
	return -1
}
