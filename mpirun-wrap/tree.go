package mpirunwrap

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// descendants are all living processes below this one, parents before their children. This process is their subreaper,
// so what was forked, set its own session and lost its parent is below it too.
func descendants() []site.Proc {
	var found []site.Proc
	seen := map[int]bool{os.Getpid(): true}
	for next := []int{os.Getpid()}; len(next) > 0; next = next[1:] {
		for _, pid := range children(next[0]) {
			if seen[pid] {
				continue
			}
			seen[pid] = true
			next = append(next, pid)
			if stat, err := site.ReadStat(pid); err == nil && stat.State != 'Z' && stat.State != 'X' {
				found = append(found, stat.Proc)
			}
		}
	}
	return found
}

// children are the pids of a process's children, those of all its threads.
func children(pid int) []int {
	lists, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	if len(lists) == 0 {
		return childrenBySearch(pid)
	}
	var pids []int
	for _, list := range lists {
		content, _ := os.ReadFile(list)
		for _, word := range strings.Fields(string(content)) {
			if child, err := strconv.Atoi(word); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// childrenBySearch is for a kernel without CONFIG_PROC_CHILDREN.
func childrenBySearch(pid int) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		candidate, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, err := site.ReadStat(candidate); err == nil && stat.Parent == pid {
			pids = append(pids, candidate)
		}
	}
	return pids
}

// catches and ignores report what a process does with a signal, by the masks in /proc/PID/status.
func catches(pid int, signal unix.Signal) bool { return inMask(pid, "\nSigCgt:", signal) }

func ignores(pid int, signal unix.Signal) bool { return inMask(pid, "\nSigIgn:", signal) }

func inMask(pid int, field string, signal unix.Signal) bool {
	content, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	_, rest, found := bytes.Cut(content, []byte(field))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	mask, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	return found && err == nil && mask&(1<<(uint(signal)-1)) != 0
}

// usesCUDA reports whether a process may have work on a GPU: the driver's library is loaded, or what is loaded may not
// be seen. The library cannot be linked into a program, so without it there is no work. A process that is stopped cannot
// begin to.
func usesCUDA(pid int) bool {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return !os.IsNotExist(err)
	}
	return bytes.Contains(content, []byte("/libcuda.so"))
}

// mostFiles bounds the descriptors that are looked at: cuInit's are among a process's first.
const mostFiles = 1024

// The files of the driver that cuInit opens, by the ends of their paths; a container may have its own.
const (
	memoryFile  = "/dev/nvidia-uvm"
	controlFile = "/dev/nvidiactl"
)

// driverFiles are the descriptors by which a process has the memory driver's file and the control device open; none where
// that may not be seen.
func driverFiles(pid int) (memory, control []int) {
	dir, err := os.Open("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		return nil, nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(mostFiles)
	for _, name := range names {
		number, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		switch fileOf(int(dir.Fd()), name) {
		case memoryFile:
			memory = append(memory, number)
		case controlFile:
			control = append(control, number)
		}
	}
	return memory, control
}

// fileOf is which of the driver's files a link in /proc/PID/fd leads to, "" for none.
func fileOf(dir int, name string) string {
	var buffer [256]byte
	n, err := unix.Readlinkat(dir, name, buffer[:])
	if err != nil {
		return ""
	}
	for _, end := range []string{memoryFile, controlFile} {
		if bytes.HasSuffix(buffer[:n], []byte(end)) {
			return end
		}
	}
	return ""
}

// ownFile is the path of an open file of this process.
func ownFile(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// whenReadable calls act whenever a descriptor that does not block can be read, until act says that this is all, and
// closes it. It waits in Go's poller, which takes no thread.
func whenReadable(fd int, act func() (all bool)) {
	file := os.NewFile(uintptr(fd), ownFile(fd))
	defer file.Close()
	conn, err := file.SyscallConn()
	if err != nil {
		return
	}
	for all := false; !all && err == nil; {
		err = conn.Read(func(fd uintptr) bool {
			ready := readable(int(fd))
			if ready {
				all = act()
			}
			return ready
		})
	}
}

func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}
