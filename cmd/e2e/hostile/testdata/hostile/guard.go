package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// The attacks on the guard, a process of root that reads which files the user's processes have open.

const (
	sysPidfdOpen  = 434
	sysPidfdGetfd = 438
	ptraceSeize   = 0x4206
)

// opens opens and closes a device file about 10,000 times a second.
func opens(path string) error {
	return until(func() {
		for range 10 {
			fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
			if err == nil {
				syscall.Close(fd)
			}
		}
		time.Sleep(time.Millisecond)
	})
}

// flips replaces the files of its descriptors without end: each is first a device file, then another file.
func flips(control, memory, other string) error {
	var files [3]int
	for i, path := range []string{control, memory, other} {
		fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
		if err != nil {
			return err
		}
		files[i] = fd
	}
	return until(func() {
		for _, file := range files {
			for fd := 20; fd < 40; fd++ {
				_ = syscall.Dup3(file, fd, 0)
			}
		}
	})
}

// flipping does the same with a file that does not close. A thread that replaces this file waits for ever, so each
// replacement has its own thread. Thousands of further descriptors make the time longer between the guard's look at
// these descriptors and its reaction. It ends its attack when so many threads may wait.
func flipping(control, memory, other, threads string) error {
	most, err := strconv.Atoi(threads)
	if err != nil {
		return err
	}
	var files [3]int
	for i, path := range []string{control, memory, other} {
		fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
		if err != nil {
			return err
		}
		files[i] = fd
	}
	const first, last, above = 100, 110, 3500
	for at := last; at < above; at++ {
		_ = syscall.Dup3(0, at, 0)
	}
	each := func(file int) {
		for at := first; at < last; at++ {
			go func() { _ = syscall.Dup3(file, at, 0) }()
		}
		time.Sleep(time.Duration(rand.IntN(10_000)) * time.Microsecond)
	}
	fmt.Println("ready")
	for range most / (last - first) {
		each(files[1])
		each(files[2])
	}
	time.Sleep(lifetime)
	return nil
}

// forks starts clients without end. Each opens the device files, starts children that have them open too, and ends.
func forks(control, memory string) error {
	return until(func() {
		cmd := exec.Command("/bin/sh", "-c", `exec 5<"$0" 6<"$1" 7<"$1"; sleep 0.05 & sleep 0.05 & sleep 0.02`, control, memory)
		if cmd.Start() == nil {
			go func() { _ = cmd.Wait() }()
		}
		time.Sleep(5 * time.Millisecond)
	})
}

// rights tries what only the owner of a process may do, and prints what succeeds.
func rights(pid int) error {
	runtime.LockOSThread()
	for signal := syscall.Signal(1); signal < 65; signal++ {
		if syscall.Kill(pid, signal) == nil {
			fmt.Println("signal", int(signal))
		}
	}
	if _, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, ptraceSeize, uintptr(pid), 0, 0, 0, 0); errno == 0 {
		fmt.Println("ptrace seize")
	}
	if syscall.PtraceAttach(pid) == nil {
		fmt.Println("ptrace attach")
	}
	if fd, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(pid), 0, 0); errno == 0 {
		for number := range uintptr(64) {
			if _, _, errno := syscall.Syscall(sysPidfdGetfd, fd, number, 0); errno == 0 {
				fmt.Println("file", number)
			}
		}
	}
	for _, file := range []string{"mem", "fd", "environ", "maps", "oom_score_adj"} {
		for _, flag := range []int{os.O_RDONLY, os.O_WRONLY} {
			path := fmt.Sprintf("/proc/%d/%s", pid, file)
			if f, err := os.OpenFile(path, flag, 0); err == nil && !(file == "oom_score_adj" && flag == os.O_RDONLY) {
				fmt.Println("opens", path, flag)
				f.Close()
			}
		}
	}
	return nil
}

// scribbles writes into files of a folder, and makes and removes files, as fast as possible.
func scribbles(folder string) error {
	file, err := os.OpenFile(filepath.Join(folder, "server.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	count := 0
	return until(func() {
		count++
		if _, err := file.Write([]byte("x\n")); err != nil || count%10_000 == 0 {
			_ = file.Truncate(0)
		}
		path := filepath.Join(folder, fmt.Sprint("file", count%100))
		if err := os.WriteFile(path, nil, 0o600); err == nil && count%2 == 0 {
			_ = os.Remove(path)
		}
	})
}

// withDevices is a shell script that execs a program with the device files of a folder open.
const withDevices = `exec 5<"$0/nvidiactl" 6<"$0/nvidia-uvm" 8<"$0/nvidia0"; exec sleep "$1"`

// fakes starts processes that have the device files open and sleep, and traces the last of them if asked to.
func fakes(folder string, count int, trace bool) error {
	runtime.LockOSThread() // a tracer is a thread
	last := 0
	for range count {
		cmd := exec.Command("/bin/sh", "-c", withDevices, folder, "900")
		if err := cmd.Start(); err != nil {
			return err
		}
		last = cmd.Process.Pid
	}
	if trace {
		if _, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, ptraceSeize, uintptr(last), 0, 0, 0, 0); errno != 0 {
			return errno
		}
	}
	fmt.Println("ready")
	time.Sleep(2 * lifetime) // hundreds of processes start slowly on a busy machine
	return nil
}

// rush starts processes that have the device files open for a moment, as fast as possible. If they inherit the files,
// they are forks of one client.
func rush(folder string, inherit bool) error {
	line := []string{"/bin/sh", "-c", withDevices, folder, "0.02"}
	if inherit {
		for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia0"} {
			if _, err := syscall.Open(filepath.Join(folder, name), syscall.O_RDONLY, 0); err != nil { // not close-on-exec
				return err
			}
		}
		line = []string{"/bin/sleep", "0.02"}
	}
	running := make(chan bool, 50)
	return until(func() {
		cmd := exec.Command(line[0], line[1:]...)
		running <- true
		if cmd.Start() == nil {
			go func() { _ = cmd.Wait(); <-running }()
		}
		time.Sleep(time.Millisecond)
	})
}

// reopens opens and closes the memory device without end, beside another file of it that stays open. Each close leaves
// a part of a client behind.
func reopens(folder string) error {
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia0"} {
		if _, err := syscall.Open(filepath.Join(folder, name), syscall.O_RDONLY, 0); err != nil {
			return err
		}
	}
	return until(func() {
		fd, err := syscall.Open(filepath.Join(folder, "nvidia-uvm"), syscall.O_RDONLY, 0)
		time.Sleep(10 * time.Millisecond)
		if err == nil {
			syscall.Close(fd)
		}
	})
}

// holds opens a file many times, and each device file once, as its last descriptors. Then it opens one again and again.
func holds(folder string, count int) error {
	for range count {
		if _, err := syscall.Open("/dev/null", syscall.O_RDONLY, 0); err != nil {
			return err
		}
	}
	return reopens(folder)
}

// The attacks on the memory of a closed job's file system.

const keptSize = 8 << 20

// keeps keeps new files of a folder in use: one that is open, removed, written (it goes on writing) or in flight over a
// socket, or folders with ACLs of 128 KiB, which no limit of memory counts.
func keeps(how, dir string) error {
	if how == "folders" {
		return keepsFolders(dir)
	}
	file, err := os.OpenFile(filepath.Join(dir, how), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err := file.Write(make([]byte, keptSize)); err != nil {
		return err
	}
	if how != "open" {
		if err := os.Remove(file.Name()); err != nil {
			return err
		}
	}
	switch how {
	case "written":
		buffer := make([]byte, 64<<10)
		return until(func() { _, _ = file.WriteAt(buffer, 0) })
	case "flight":
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		if err := syscall.Sendmsg(pair[0], []byte("x"), syscall.UnixRights(int(file.Fd())), nil, 0); err != nil {
			return err
		}
		file.Close()
	}
	return sleep()
}

func keepsFolders(dir string) error {
	acl := make([]byte, 4, 60<<10) // a version, and entries of a tag, a right and a number
	acl[0] = 2
	entry := func(tag, right uint16, id uint32) {
		acl = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(acl, tag), right), id)
	}
	const user, group, groups, mask, others, none = 1, 2, 4, 0x10, 0x20, 1<<32 - 1
	entry(user, 7, none)
	for id := uint32(100000); len(acl) < 59<<10; id++ {
		entry(group, 7, id)
	}
	entry(groups, 0, none)
	entry(mask, 7, none)
	entry(others, 0, none)
	const path = 0x200000 // O_PATH
	for n := range 55 {
		name := filepath.Join(dir, strconv.Itoa(n))
		if err := os.Mkdir(name, 0o700); err != nil {
			return err
		}
		for _, kind := range []string{"access", "default"} {
			if err := syscall.Setxattr(name, "system.posix_acl_"+kind, acl, 0); err != nil {
				return err
			}
		}
		if _, err := syscall.Open(name, path, 0); err != nil {
			return err
		}
	}
	return sleep()
}

// locks keeps the locks of a new file and of its folder, while the kernel waits for pages of a file system that does
// not answer. No signal ends a process that waits for such a lock.
func locks(dir, hanging string) error {
	never, err := os.Open(filepath.Join(hanging, "file"))
	if err != nil {
		return err
	}
	page, err := syscall.Mmap(int(never.Fd()), 0, fileSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "fat"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err := file.Write(make([]byte, keptSize)); err != nil {
		return err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	go func() { _, _ = file.WriteAt(page[:4096], 0) }()
	go func() { _, _ = syscall.Getdents(int(folder.Fd()), page[8192:16384]) }()
	time.Sleep(300 * time.Millisecond) // both wait in the kernel
	fmt.Println("ready")
	time.Sleep(lifetime)
	return nil
}
