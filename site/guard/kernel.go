// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"unsafe"

	"github.com/slurm-mps/slurm-mps/site"
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
	k := &kernel{folder: o.Devices, minors: o.Minors, proc: proc, groups: "/sys/fs/cgroup", self: unix.Getpid(), memories: map[string]memory{}}
	k.findDevices()
	return k, nil
}

func (k *kernel) close() { unix.Close(k.proc) }

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

// maxText limits the read of one of the kernel's text files about a process.
const maxText = 8 << 10

// read reads a file of /proc/PID that the kernel writes. It is not for environ and cmdline, which are the process's own
// memory and may never arrive.
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
	looked          int    // number of descriptors that were read
}

// openedBy reads the first descriptors of a process, up to max. It uses statx, so a user's file system cannot delay the
// guard.
func (k *kernel) openedBy(pid, max int) (o opened, err error) {
	dir, err := unix.Openat(k.proc, strconv.Itoa(pid)+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return o, err
	}
	defer unix.Close(dir)
	err = eachNumber(dir, func(number int) bool {
		o.looked++
		d, ok := k.deviceAt(dir, strconv.Itoa(number))
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
		return o.looked < max
	})
	return o, err
}

// deviceAt returns which of the driver's files a link in /proc/PID/fd leads to.
func (k *kernel) deviceAt(dir int, name string) (device, bool) {
	var st unix.Statx_t
	if statx(dir, name, 0, &st) != nil {
		return device{}, false
	}
	d, ok := k.ids[identityOf(&st)]
	return d, ok
}

// statx reads a file's type and number. With AT_STATX_DONT_SYNC the kernel does not ask a user's file system.
func statx(dir int, name string, flags int, st *unix.Statx_t) error {
	return unix.Statx(dir, name, flags|unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO, st)
}

// pipesOf returns the inodes of a process's pipes, from up to max descriptors.
func (k *kernel) pipesOf(pid, max int) (map[string]bool, error) {
	dir, err := unix.Openat(k.proc, strconv.Itoa(pid)+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	pipes, looked := map[string]bool{}, 0
	err = eachNumber(dir, func(number int) bool {
		var target [64]byte
		n, err := unix.Readlinkat(dir, strconv.Itoa(number), target[:])
		if err == nil && bytes.HasPrefix(target[:n], []byte("pipe:[")) {
			pipes[string(target[:n])] = true
		}
		looked++
		return looked < max
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
// The error is EBADF if the other process has closed its descriptor.
func (k *kernel) compare(own, pid, number int) (same bool, err error) {
	const kcmpFile = 0
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(k.self), uintptr(pid), kcmpFile, uintptr(own), uintptr(number), 0)
	if errno != 0 {
		return false, errno
	}
	return order == 0, nil
}
