// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site/guard/take"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// kind says which of the driver's files an open file is.
type kind int

const (
	otherFile kind = iota
	controlFile
	memoryFile
	gpuFile
	otherGPU // a GPU of another job
)

// kernel reads from the kernel which processes exist and which of the driver's files they have open.
type kernel struct {
	folder string // the folder of the device files
	minors []int
	groups string // the mount point of the control groups
	self   int    // own pid
	ids    map[take.Identity]device
	asks   *asker
	// memories caches the memory of control groups, by their folders, since the last check.
	memories map[string]*memory
	// threadPidfd opens a pidfd of a thread, since Linux 6.9.
	threadPidfd func(thread int) (int, error)
}

// device is one of the driver's files.
type device struct {
	kind kind
	gpu  int // for gpuFile: an index into Options.Minors
}

func newKernel(o Options) *kernel {
	k := &kernel{
		folder: o.Devices, minors: o.Minors, groups: "/sys/fs/cgroup", self: unix.Getpid(), asks: newAsker(),
		memories:    map[string]*memory{},
		threadPidfd: func(thread int) (int, error) { return unix.PidfdOpen(thread, unix.PIDFD_THREAD) },
	}
	k.findDevices()
	return k
}

func (k *kernel) path(wanted kind) string {
	if wanted == controlFile {
		return filepath.Join(k.folder, "nvidiactl")
	}
	return filepath.Join(k.folder, "nvidia-uvm")
}

// maxMinors is above the number of any GPU of a node.
const maxMinors = 64

// findDevices reads the numbers of the device files. The memory driver's file may not exist before the first server
// starts.
func (k *kernel) findDevices() {
	ids := map[take.Identity]device{}
	note := func(path string, d device) {
		var st unix.Statx_t
		if take.Statx(unix.AT_FDCWD, path, 0, &st) == nil {
			ids[take.IdentityOf(&st)] = d
		}
	}
	note(k.path(controlFile), device{kind: controlFile})
	note(k.path(memoryFile), device{kind: memoryFile})
	for minor := range maxMinors {
		d := device{kind: otherGPU}
		if i := slices.Index(k.minors, minor); i >= 0 {
			d = device{gpuFile, i}
		}
		note(filepath.Join(k.folder, "nvidia"+strconv.Itoa(minor)), d)
	}
	k.ids = ids
}

func (k *kernel) knows(wanted kind) bool { return k.identity(wanted) != take.Identity{} }

// identity returns the identity of the control or memory device's file, or the zero value if there is no file.
func (k *kernel) identity(wanted kind) take.Identity {
	for id, d := range k.ids {
		if d.kind == wanted {
			return id
		}
	}
	return take.Identity{}
}

// opened are a process's descriptors of the driver's files.
type opened struct {
	thread          int // the thread that has them
	control, memory []int
	gpus            uint64 // bit n: GPU n of the job
	others          bool   // a GPU of another job
	scanned         int    // number of descriptors that were read
}

// openedBy reads the first descriptors of a process, up to max. It uses statx, so no user's file system is asked.
func (k *kernel) openedBy(pid, max int) (opened, error) {
	ids := k.ids
	return ask(k.asks, pid, func(step func()) (opened, error) { return openedBy(ids, pid, max, step) })
}

func openedBy(ids map[take.Identity]device, pid, max int, step func()) (o opened, err error) {
	o.thread, err = proc.EachDescriptor(pid, func(folder, number int) bool {
		step()
		o.scanned++
		d, ok := deviceAt(ids, folder, strconv.Itoa(number))
		switch {
		case !ok:
		case d.kind == controlFile:
			o.control = append(o.control, number)
		case d.kind == memoryFile:
			o.memory = append(o.memory, number)
		case d.kind == gpuFile:
			o.gpus |= 1 << d.gpu
		case d.kind == otherGPU:
			o.others = true
		}
		return o.scanned < max
	})
	if err != nil {
		err = fmt.Errorf("cannot list its open files: %w", err)
	}
	return o, err
}

// deviceAt returns which of the driver's files a link in /proc/PID/fd leads to.
func deviceAt(ids map[take.Identity]device, dir int, name string) (device, bool) {
	var st unix.Statx_t
	if take.Statx(dir, name, 0, &st) != nil {
		return device{}, false
	}
	d, ok := ids[take.IdentityOf(&st)]
	return d, ok
}

// pipesOf returns the inodes of a process's pipes, from up to max descriptors.
func (k *kernel) pipesOf(pid, max int) (map[string]bool, error) {
	return ask(k.asks, pid, func(step func()) (map[string]bool, error) {
		pipes, scanned := map[string]bool{}, 0
		_, err := proc.EachDescriptor(pid, func(folder, number int) bool {
			step()
			var target [64]byte
			n, err := unix.Readlinkat(folder, strconv.Itoa(number), target[:])
			if err == nil && bytes.HasPrefix(target[:n], []byte("pipe:[")) {
				pipes[string(target[:n])] = true
			}
			scanned++
			return scanned < max
		})
		return pipes, err
	})
}

// compare reports whether a descriptor of this process and a descriptor of another process's thread are the same open
// file. The error is EBADF if the other process has closed its descriptor. It is called within ask.
func (k *kernel) compare(fd, pid, number int) (bool, error) {
	const kcmpFile = 0
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(k.self), uintptr(pid), kcmpFile, uintptr(fd), uintptr(number), 0)
	if errno != 0 {
		return false, errno
	}
	return order == 0, nil
}

// spareFiles are the descriptors that the guard keeps for its own work, such as reading /proc.
const spareFiles = 32

// pidfd opens a pidfd of a process.
func (k *kernel) pidfd(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	var limit unix.Rlimit
	limited := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil
	if err == nil && limited && uint64(fd)+min(spareFiles, limit.Cur/4) >= limit.Cur {
		unix.Close(fd)
		err = unix.EMFILE
	}
	if err != nil {
		return -1, fmt.Errorf("cannot open a pidfd: %w", err)
	}
	return fd, nil
}

// errThread means that a process's files cannot be duplicated, because its first thread has ended.
var errThread = errors.New("its first thread has ended, and Linux before 6.9 duplicates no files of such a process")

// filesOf opens a pidfd by which a client's files can be duplicated: its own, or that of its first living thread.
func (k *kernel) filesOf(c *client) (pidfd int, err error) {
	if c.thread == c.proc.PID {
		return unix.FcntlInt(uintptr(c.pidfd), unix.F_DUPFD_CLOEXEC, 0)
	}
	pidfd, err = k.threadPidfd(c.thread)
	switch {
	case errors.Is(err, unix.EINVAL):
		return -1, errThread
	case err != nil:
		return -1, fmt.Errorf("cannot open a pidfd of a thread: %w", err)
	}
	if _, err := proc.ReadThread(c.proc.PID, c.thread); err != nil { // another process may have the number by now
		unix.Close(pidfd)
		return -1, unix.ESRCH
	}
	return pidfd, nil
}

// ended reports whether a process is known to have ended.
func (k *kernel) ended(p proc.Process) bool {
	stat, err := k.stat(p.PID)
	if errors.Is(err, proc.ErrSilent) {
		return false
	}
	return err != nil || stat.Process != p || !stat.Running()
}

// stat returns the state of a process.
func (k *kernel) stat(pid int) (proc.Stat, error) {
	return ask(k.asks, pid, func(func()) (proc.Stat, error) { return proc.StatNow(pid) })
}
