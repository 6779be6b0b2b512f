package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// The attack on programs that read the environment of a process. The kernel reads the environment from the process's
// memory, under a lock. A page fault holds the lock until a file system of the user has delivered the page.

// waits is a file that is there once a read waits for its answer for ever.
const waits = "waits"

// Requests of the FUSE protocol, and sizes and numbers in the answers.
const (
	fuseLookup  = 1
	fuseGetattr = 3
	fuseOpen    = 14
	fuseRead    = 15
	fuseFlush   = 25 // the request of a close
	fuseInit    = 26
	headerSize  = 40
	fileNode    = 2
	fileSize    = 1 << 20
)

// fuse is a file system with one file. It answers this many reads of the file with an error, and no read after that.
// From then on it has another file, named waits. If errors is negative, it does not answer a close of the file either.
// It ends after a time. The test has mounted the file system, as fusermount does for users, and passes it as
// descriptor 3.
func fuse(errors int, seconds time.Duration) error {
	device := os.NewFile(3, "fuse")
	reads := 0
	request := make([]byte, 1<<20)
	time.AfterFunc(seconds, func() { os.Exit(0) }) // a test that fails must not block readers of /proc for long
	fmt.Println("ready")
	for {
		n, err := device.Read(request)
		if err != nil || n < headerSize {
			return err
		}
		opcode, unique := binary.LittleEndian.Uint32(request[4:]), binary.LittleEndian.Uint64(request[8:])
		var answer []any
		failed := int32(0)
		switch opcode {
		case fuseInit:
			answer = []any{[2]uint32{7, 31}, uint32(4096), uint32(0), [2]uint16{8, 8}, uint32(4096), [10]uint32{}}
		case fuseLookup:
			if string(bytes.TrimRight(request[headerSize:n], "\x00")) == waits && reads <= errors {
				failed = -int32(syscall.ENOENT)
				break
			}
			answer = append([]any{[4]uint64{fileNode, 0, 60, 60}, [2]uint32{}}, attributes(fileNode)...)
		case fuseGetattr:
			answer = append([]any{uint64(60), [2]uint32{}}, attributes(binary.LittleEndian.Uint64(request[16:]))...)
		case fuseOpen:
			answer = []any{uint64(0), [2]uint32{}}
		case fuseRead:
			if reads++; reads > errors {
				continue
			}
			failed = -int32(syscall.EIO)
		case fuseFlush:
			if errors < 0 {
				continue
			}
			failed = -int32(syscall.ENOSYS)
		default:
			failed = -int32(syscall.ENOSYS)
		}
		if err := reply(device, unique, failed, answer); err != nil {
			return err
		}
	}
}

// attributes returns the attributes of the root folder, which is node 1, or of its only file.
func attributes(node uint64) []any {
	mode := uint32(syscall.S_IFREG | 0o644)
	if node == 1 {
		mode = syscall.S_IFDIR | 0o755
	}
	return []any{[6]uint64{node, fileSize, 8}, [3]uint32{}, mode, uint32(1), [2]uint32{}, [3]uint32{0, 4096, 0}}
}

func reply(device *os.File, unique uint64, failed int32, answer []any) error {
	var body bytes.Buffer
	for _, part := range answer {
		if err := binary.Write(&body, binary.LittleEndian, part); err != nil {
			return err
		}
	}
	var packet bytes.Buffer
	for _, part := range []any{uint32(16 + body.Len()), failed, unique} {
		if err := binary.Write(&packet, binary.LittleEndian, part); err != nil {
			return err
		}
	}
	_, err := device.Write(append(packet.Bytes(), body.Bytes()...))
	return err
}

// stuck is a process that waits for a page of that file, and at the same time for the lock to change its memory. A
// reader of its memory waits until both have ended. The kernel holds the lock when it asks for the page the third
// time.
func stuck(dir string) error {
	file, err := os.Open(filepath.Join(dir, "file"))
	if err != nil {
		return err
	}
	page, err := syscall.Mmap(int(file.Fd()), 0, fileSize, syscall.PROT_READ, syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	go func() { fmt.Print(page[0]) }()
	time.Sleep(200 * time.Millisecond)
	go func() { _ = syscall.Mprotect(page, syscall.PROT_READ|syscall.PROT_WRITE) }()
	time.Sleep(lifetime)
	return nil
}

// unkillable is a process that waits for an answer of that file. The kernel does not end the process while it waits,
// once the file system has the question.
func unkillable(dir string) error {
	file, err := os.Open(filepath.Join(dir, "file"))
	if err != nil {
		return err
	}
	go func() {
		for _, err := os.Stat(filepath.Join(dir, waits)); err != nil; _, err = os.Stat(filepath.Join(dir, waits)) {
			time.Sleep(time.Millisecond)
		}
		fmt.Println("ready")
	}()
	_, err = file.Read(make([]byte, 1))
	return err
}

// execs starts this many processes of each name that never finish their exec. They end with this process, as soon as
// their file system lets them.
func execs(dir string, count int, names []string) error {
	runtime.LockOSThread() // the processes end with this thread
	for _, name := range names {
		for range count {
			process := exec.Command(os.Args[0], "exec", dir, name)
			process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := process.StdoutPipe()
			if err != nil {
				return err
			}
			if err := process.Start(); err != nil {
				return err
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
				return fmt.Errorf("%s prints %q: %v", name, line, err)
			}
		}
	}
	return sleep()
}

// execute is a process in the middle of an exec. The kernel closes its file during the exec, while it holds the lock
// that every reader of /proc/PID/stat takes. The file system does not answer the close.
func execute(dir, name string) error {
	runtime.LockOSThread()
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0); errno != 0 {
		return errno
	}
	if _, err := os.OpenFile(filepath.Join(dir, "file"), os.O_RDWR, 0); err != nil {
		return err
	}
	if devices := os.Getenv("DEVICES"); devices != "" { // the process is a client, and then execs
		for path := range strings.SplitSeq(devices, ":") {
			if _, err := syscall.Open(path, syscall.O_RDONLY, 0); err != nil {
				return err
			}
		}
		time.Sleep(time.Second)
	}
	fmt.Println("ready")
	return syscall.Exec("/bin/sleep", []string{"sleep", "100"}, os.Environ())
}
