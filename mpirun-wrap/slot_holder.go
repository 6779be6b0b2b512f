// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// slotHolder is who has a slot: the process that took it, or one that it has left behind.
type slotHolder struct {
	proc.Process      // zero if it is not known
	left         bool // the process that took the slot has ended
}

// String describes the holder for the user.
func (h slotHolder) String() string {
	name, err := proc.Name(h.PID)
	switch {
	case h.PID == 0 || err != nil:
		return "a process that cannot be seen here"
	case h.left:
		return fmt.Sprintf("%s (pid %d), left by a program that has ended", name, h.PID)
	}
	return fmt.Sprintf("%s (pid %d)", name, h.PID)
}

// namespaces names the namespaces of this process in which its pid and start time are valid. It is "" if the kernel
// does not tell.
var namespaces = sync.OnceValue(func() string {
	pids, err := proc.Namespace(os.Getpid(), "pid")
	if err != nil {
		return ""
	}
	times, _ := proc.Namespace(os.Getpid(), "time") // Linux 5.6
	return pids + times
})

// writeTaker writes that this process takes a slot, or is alone on a GPU, and its namespaces.
func writeTaker(file *slotFile, where string) error {
	self, err := proc.Current()
	if err != nil {
		return err
	}
	return file.write(strconv.Itoa(self.PID) + " " + strconv.FormatUint(self.Start, 10) + " " + where)
}

// readTaker reads what writeTaker has written. It is not known in other namespaces, or if its file is empty.
func readTaker(file *slotFile, where string) (taker proc.Process, known bool) {
	content, _ := file.read()
	fields := strings.Fields(content)
	if len(fields) < 2 || strings.Join(fields[2:], " ") != where {
		return proc.Process{}, false
	}
	pid, err1 := strconv.Atoi(fields[0])
	start, err2 := strconv.ParseUint(fields[1], 10, 64)
	return proc.Process{PID: pid, Start: start}, err1 == nil && err2 == nil && pid > 0
}

// lives reports whether the process that took a slot runs. A process in an exec does not answer, and runs.
func (t *slotTable) lives(taker proc.Process) bool {
	return proc.Exists(taker.PID) && (!t.looks || len(proc.Left([]proc.Process{taker})) > 0)
}

// leftover is what the processes with a slot's lock are, after the process that took the slot has ended.
type leftover struct {
	proc.Process      // one that uses the GPU, or that may begin to; otherwise any
	mayUse       bool // the slot's part of the GPU
}

// leftovers are all processes that have the lock of a slot, by the path of the slot's file.
type leftovers struct {
	all    map[string]leftover
	hidden uint64 // the latest start of a process of this user whose files cannot be seen: it may have any earlier slot
}

// searchTime limits a search for leftovers, also without --slots-wait. A process in the middle of an exec can delay it.
const searchTime = 5 * time.Second

// findLeftovers looks through the files of this user's processes.
func findLeftovers(prefix string) (leftovers, error) {
	ctx, cancel := context.WithTimeout(context.Background(), searchTime)
	defer cancel()
	return wait.Within(ctx, func() (leftovers, error) {
		found := leftovers{all: map[string]leftover{}}
		pids, err := proc.PIDs()
		for _, pid := range pids {
			if ctx.Err() != nil {
				return found, ctx.Err()
			}
			status, err := proc.ReadStatus(pid)
			if err == nil && status.Running() && status.UIDs[0] == uint32(os.Getuid()) && pid != os.Getpid() {
				found.add(pid, prefix)
			}
		}
		return found, err
	})
}

// add adds a process, if it has the lock of a slot.
func (l *leftovers) add(pid int, prefix string) {
	var slots []string
	usesGPU := false
	_, err := proc.EachDescriptor(pid, func(folder, number int) bool {
		var link [unix.PathMax]byte
		n, _ := unix.Readlinkat(folder, fmt.Sprint(number), link[:])
		path := string(link[:max(n, 0)])
		if strings.HasPrefix(path, prefix) {
			slots = append(slots, path)
		}
		usesGPU = usesGPU || strings.HasSuffix(path, "/dev/nvidia-uvm")
		return true
	})
	stat, noStat := proc.ReadStat(pid)
	if noStat != nil && !proc.Exists(pid) {
		return
	}
	if err != nil || noStat != nil {
		l.hidden = max(l.hidden, stat.Start)
		if noStat != nil {
			l.hidden = ^uint64(0)
		}
		return
	}
	for _, path := range slots {
		if before, seen := l.all[path]; !seen || !before.mayUse {
			l.all[path] = leftover{stat.Process, usesGPU || !isIdle(stat)}
		}
	}
}

// A process that a program leaves behind is idle if it has run for idleAge ticks, has used less than a tenth of a
// processor since its start, and waits for neither a disk nor a processor. A program that starts is busier.
const idleAge, idlePart = 300, 10

func isIdle(stat proc.Stat) bool {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return false
	}
	const ticks = 100 // a second, in all of Linux's interfaces
	age := uint64(now.Nano())/(uint64(time.Second)/ticks) - stat.Start
	return int64(age) >= idleAge && stat.CPU*idlePart < age && stat.State != 'D' && stat.State != 'R'
}

// judge decides who has a slot whose file is locked, or whose lock is free. It returns false if the slot is free.
//
// A slot has two witnesses: the lock, which the program and its children inherit, and the process that took the slot.
// The slot is taken while that process runs, because a program may close files that it has not opened. After its end,
// the lock counts if a process that has it uses the GPU or may begin to, or if this is not known.
func (t *slotTable) judge(slot int, taker proc.Process, known, locked bool) (slotHolder, bool) {
	switch {
	case known && t.lives(taker):
		return slotHolder{Process: taker}, true
	case !locked:
		return slotHolder{}, false
	case !known || !t.looks:
		return slotHolder{left: known}, true
	}
	if t.left == nil {
		found, err := findLeftovers(t.path(0)[:len(t.path(0))-1])
		if err != nil {
			found.hidden = ^uint64(0)
		}
		t.left = &found
	}
	left, seen := t.left.all[t.path(slot)]
	return slotHolder{left.Process, true}, !seen || left.mayUse || t.left.hidden >= taker.Start
}

// maxTold is how many holders a message names.
const maxTold = 4

// holders describes who has the slots that the last look found taken.
func (t *slotTable) holders() string {
	var told []string
	more := 0
	for slot := range t.gpus {
		holder, taken := t.taken[slot]
		switch {
		case !taken:
		case len(told) < maxTold:
			told = append(told, fmt.Sprintf("slot %d: %v", slot, holder))
		default:
			more++
		}
	}
	if len(told) == 0 {
		return "other processes of this job wait, too"
	}
	if more > 0 {
		told = append(told, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(told, "; ")
}

// openSlot opens a slot's file and locks it, if no other process has.
func (t *slotTable) openSlot(slot int) (file *slotFile, locked bool, err error) {
	if file, err = openSlotFile(t.path(slot)); err != nil {
		return nil, false, err
	}
	err = unix.Flock(file.fd, unix.LOCK_EX|unix.LOCK_NB)
	if locked = errors.Is(err, unix.EWOULDBLOCK); err != nil && !locked {
		file.close()
		return nil, false, fmt.Errorf("cannot lock %s: %w", file.path, err)
	}
	return file, locked, nil
}
