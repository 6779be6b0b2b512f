// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// EachPID calls each with every pid, until a call returns false.
func EachPID(each func(pid int) bool) error {
	err := eachNumber("/proc", func(_, pid int) bool { return each(pid) })
	if err != nil {
		return fmt.Errorf("cannot list processes: %w", err)
	}
	return nil
}

// PIDs returns the pids of all processes.
func PIDs() (all []int, err error) {
	err = EachPID(func(pid int) bool {
		all = append(all, pid)
		return true
	})
	return all, err
}

// EachThread calls each with the numbers of a process's threads, until a call returns false.
func EachThread(pid int, each func(thread int) bool) error {
	return eachNumber(folder(pid)+"/task", func(_, thread int) bool { return each(thread) })
}

// EachDescriptor calls each with the descriptors of a process, until a call returns false. The folder is open and has
// their links by number. The call waits while the process is in an exec (see ErrSilent). It returns the thread that has
// them, which is pid as long as the first thread lives.
func EachDescriptor(pid int, each func(folder, number int) bool) (thread int, err error) {
	listed := false
	err = eachNumber(folder(pid)+"/fd", func(folder, number int) bool {
		listed = true
		return each(folder, number)
	})
	if listed { // the usual case costs nothing more
		return pid, err
	}
	switch thread = Thread(pid); thread {
	case 0:
		return pid, fmt.Errorf("process %d has ended: %w", pid, fs.ErrNotExist)
	case pid:
		return pid, err
	}
	return thread, eachNumber(threadFolder(pid, thread)+"/fd", each)
}

func folder(pid int) string { return "/proc/" + strconv.Itoa(pid) }

// eachNumber calls each for the entries of a folder whose name is a number, until a call returns false. It allocates
// nothing for an entry, because a node has thousands of processes.
func eachNumber(path string, each func(folder, number int) bool) error {
	dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var buffer [16 << 10]byte
	for {
		n, err := unix.Getdents(dir, buffer[:])
		if err != nil || n <= 0 {
			return err
		}
		for rest := buffer[:n]; len(rest) > 0; {
			entry := (*unix.Dirent)(unsafe.Pointer(&rest[0]))
			name := rest[unsafe.Offsetof(entry.Name):entry.Reclen]
			if number, ok := parseNumber(name); ok && !each(dir, number) {
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

// maxList limits the read of one list of children.
const maxList = 1 << 20

// Children returns the pids of a process's children. Each of the process's threads has its own list of children.
func Children(pid int) []int {
	var pids []int
	lists := 0
	_ = EachThread(pid, func(thread int) bool {
		content, err := ReadFile(threadFolder(pid, thread)+"/children", maxList)
		if err != nil {
			return true // that thread has ended, or the kernel has no such file
		}
		lists++
		for field := range strings.FieldsSeq(string(content)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
		return true
	})
	if lists == 0 {
		return childrenBySearch(pid)
	}
	return pids
}

// childrenBySearch returns the children on a kernel without CONFIG_PROC_CHILDREN.
func childrenBySearch(pid int) []int {
	all, _ := PIDs()
	return slices.DeleteFunc(all, func(candidate int) bool {
		status, err := ReadStatus(candidate)
		return err != nil || status.Parent != pid
	})
}
