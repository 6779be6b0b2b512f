// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"unsafe"

	"github.com/slurm-mps/slurm-mps/site"
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

// identity identifies a file. A character device is identified by its number, not by its path, because a container
// may have its own device file. Any other file is identified by its inode. On a simulated node, such files replace
// the devices.
type identity struct {
	Device bool
	A, B   uint64
}

func identityOf(st *unix.Statx_t) identity {
	if st.Mode&unix.S_IFMT == unix.S_IFCHR {
		return identity{true, uint64(st.Rdev_major), uint64(st.Rdev_minor)}
	}
	return identity{false, uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), st.Ino}
}

// kernel reads from the kernel which processes exist and which of the driver's files they have open.
type kernel struct {
	folder string // the folder of the device files
	minors []int
	proc   int    // /proc
	groups string // the mount point of the control groups
	self   int    // own pid
	ids    map[identity]device
	asks   *asker
	// memories caches the memory of control groups, by their folders, since the last check.
	memories map[string]memory
}

// device is one of the driver's files.
type device struct {
	kind kind
	gpu  int // for gpuFile: an index into Options.Minors
}

func openKernel(o Options) (*kernel, error) {
	proc, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open /proc: %w", err)
	}
	k := &kernel{
		folder: o.Devices, minors: o.Minors, proc: proc, groups: "/sys/fs/cgroup", self: unix.Getpid(), asks: newAsker(),
		memories: map[string]memory{},
	}
	k.findDevices()
	return k, nil
}

func (k *kernel) close() {
	k.asks.close()
	unix.Close(k.proc)
}

func (k *kernel) path(of kind) string {
	if of == controlFile {
		return filepath.Join(k.folder, "nvidiactl")
	}
	return filepath.Join(k.folder, "nvidia-uvm")
}

// maxMinors is above the number of any GPU of a node.
const maxMinors = 64

// findDevices reads the numbers of the device files. The memory driver's file may not exist before the first server
// starts.
func (k *kernel) findDevices() {
	ids := map[identity]device{}
	note := func(path string, d device) {
		var st unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS, &st) == nil {
			ids[identityOf(&st)] = d
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

func (k *kernel) knows(wanted kind) bool { return k.identity(wanted) != identity{} }

// identity returns the identity of the control or memory device's file, or the zero value if there is no file.
func (k *kernel) identity(wanted kind) identity {
	for id, d := range k.ids {
		if d.kind == wanted {
			return id
		}
	}
	return identity{}
}

// owner returns the owner of a process's folder in /proc: the effective uid, or root if the process is not dumpable.
func (k *kernel) owner(pid int) (uid uint32, ok bool) {
	var st unix.Stat_t
	err := unix.Fstatat(k.proc, strconv.Itoa(pid), &st, unix.AT_SYMLINK_NOFOLLOW)
	return st.Uid, err == nil
}

// effective returns the effective uid from a process's status file. It is right even if the process is not dumpable.
func (k *kernel) effective(pid int) (uid uint32, ok bool) {
	content, err := k.read(pid, "status")
	if err != nil {
		return 0, false
	}
	return effectiveIn(content)
}

// effectiveIn returns the effective uid from the content of a status file.
func effectiveIn(status []byte) (uid uint32, ok bool) {
	_, rest, found := bytes.Cut(status, []byte("\nUid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	fields := bytes.Fields(line) // real, effective, saved, of the file system
	if !found || len(fields) < 2 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(fields[1]), 10, 32)
	return uint32(n), err == nil
}

// namespaced reports whether a process has a pid of its own namespace, as in a container. The driver may know it by
// that pid.
func (k *kernel) namespaced(pid int) bool {
	content, _ := k.read(pid, "status")
	_, rest, _ := bytes.Cut(content, []byte("\nNSpid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return len(bytes.Fields(line)) > 1
}

// maxText limits the read of one of the kernel's text files about a process.
const maxText = 8 << 10

// read reads a file of /proc/PID that the kernel writes. It is for files whose readers wait for no process: status,
// statm, cgroup. Others are read within ask.
func (k *kernel) read(pid int, name string) ([]byte, error) {
	fd, err := unix.Openat(k.proc, strconv.Itoa(pid)+"/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	content, err := site.ReadOpen(fd, maxText)
	if err != nil {
		return nil, err
	}
	return content, nil
}

// opened are a process's descriptors of the driver's files.
type opened struct {
	control, memory []int
	gpus            uint64 // bit n: GPU n of the job
	others          bool   // a GPU of another job
	scanned         int    // number of descriptors that were read
}

// openedBy reads the first descriptors of a process, up to max. It uses statx, so no user's file system is asked.
func (k *kernel) openedBy(pid, max int) (opened, error) {
	ids := k.ids
	return ask(k.asks, pid, func(step func()) (opened, error) { return openedBy(k.proc, ids, pid, max, step) })
}

func openedBy(proc int, ids map[identity]device, pid, max int, step func()) (o opened, err error) {
	dir, err := unix.Openat(proc, strconv.Itoa(pid)+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return o, fmt.Errorf("cannot list its open files: %w", err)
	}
	defer unix.Close(dir)
	err = eachNumber(dir, func(number int) bool {
		step()
		o.scanned++
		d, ok := deviceAt(ids, dir, strconv.Itoa(number))
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
	return o, err
}

// deviceAt returns which of the driver's files a link in /proc/PID/fd leads to.
func deviceAt(ids map[identity]device, dir int, name string) (device, bool) {
	var st unix.Statx_t
	if statx(dir, name, 0, &st) != nil {
		return device{}, false
	}
	d, ok := ids[identityOf(&st)]
	return d, ok
}

// statx reads a file's type and number. With AT_STATX_DONT_SYNC the kernel does not ask a user's file system.
func statx(dir int, name string, flags int, st *unix.Statx_t) error {
	return unix.Statx(dir, name, flags|unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO, st)
}

// pipesOf returns the inodes of a process's pipes, from up to max descriptors.
func (k *kernel) pipesOf(pid, max int) (map[string]bool, error) {
	return ask(k.asks, pid, func(step func()) (map[string]bool, error) { return pipesOf(k.proc, pid, max, step) })
}

func pipesOf(proc, pid, max int, step func()) (map[string]bool, error) {
	dir, err := unix.Openat(proc, strconv.Itoa(pid)+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	pipes, scanned := map[string]bool{}, 0
	err = eachNumber(dir, func(number int) bool {
		step()
		var target [64]byte
		n, err := unix.Readlinkat(dir, strconv.Itoa(number), target[:])
		if err == nil && bytes.HasPrefix(target[:n], []byte("pipe:[")) {
			pipes[string(target[:n])] = true
		}
		scanned++
		return scanned < max
	})
	return pipes, err
}

// processes calls each with every pid.
func (k *kernel) processes(each func(pid int) bool) error {
	if _, err := unix.Seek(k.proc, 0, unix.SEEK_SET); err != nil {
		return fmt.Errorf("cannot list processes: %w", err)
	}
	if err := eachNumber(k.proc, each); err != nil {
		return fmt.Errorf("cannot list processes: %w", err)
	}
	return nil
}

// eachNumber calls each for the entries of an open folder whose name is a number, until the call returns false. It
// allocates nothing, because a node has thousands of processes.
func eachNumber(dir int, each func(int) bool) error {
	var buffer [16 << 10]byte
	for {
		n, err := unix.Getdents(dir, buffer[:])
		if err != nil || n <= 0 {
			return err
		}
		for rest := buffer[:n]; len(rest) > 0; {
			entry := (*unix.Dirent)(unsafe.Pointer(&rest[0]))
			name := rest[unsafe.Offsetof(entry.Name):entry.Reclen]
			if number, ok := parseNumber(name); ok && !each(number) {
				return nil
			}
			rest = rest[entry.Reclen:]
		}
	}
}

// parseNumber parses a name that ends with a zero byte.
func parseNumber(name []byte) (int, bool) {
	number := 0
	for i, c := range name {
		if c == 0 {
			return number, i > 0
		}
		if c < '0' || c > '9' || number > 1<<30 {
			return 0, false
		}
		number = 10*number + int(c-'0')
	}
	return 0, false
}

// compare reports whether a descriptor of this process and a descriptor of another process are the same open file.
// The error is EBADF if the other process has closed its descriptor. It is called within ask.
func (k *kernel) compare(own, pid, number int) (bool, error) {
	const kcmpFile = 0
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(k.self), uintptr(pid), kcmpFile, uintptr(own), uintptr(number), 0)
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

// ended reports whether a process is known to have ended.
func (k *kernel) ended(p site.Process) bool {
	stat, err := k.stat(p.PID)
	if errors.Is(err, errSilent) || errors.Is(err, proc.ErrSilent) {
		return false
	}
	return err != nil || stat.Process != p || !stat.Running()
}

// stat returns the state of a process.
func (k *kernel) stat(pid int) (site.Stat, error) {
	return ask(k.asks, pid, func(func()) (site.Stat, error) { return site.ReadStat(pid) })
}
