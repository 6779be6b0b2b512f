package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"
)

const ptraceTraceFork = 0x2

// inject makes a process of the same user fork, and makes the child execute a program. The child is in the control
// group of that process, not in the group of this one. inject prints "ready", and then the child's pid.
func inject(pid int, path, arg string) error {
	runtime.LockOSThread()
	if err := syscall.PtraceAttach(pid); err != nil {
		return fmt.Errorf("cannot attach to %d: %w", pid, err)
	}
	if err := stopped(pid); err != nil {
		return err
	}
	var before syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(pid, &before); err != nil {
		return err
	}
	text := make([]byte, 2)
	if _, err := syscall.PtracePeekText(pid, uintptr(before.Rip), text); err != nil {
		return err
	}
	if _, err := syscall.PtracePokeText(pid, uintptr(before.Rip), []byte{0x0f, 0x05}); err != nil { // syscall
		return err
	}
	if err := syscall.PtraceSetOptions(pid, ptraceTraceFork); err != nil {
		return err
	}
	child, err := forkIn(pid, before)
	if err != nil {
		return err
	}
	if err := execIn(child, before, path, arg); err != nil {
		return err
	}
	if _, err := syscall.PtracePokeText(pid, uintptr(before.Rip), text); err != nil {
		return err
	}
	if err := syscall.PtraceSetRegs(pid, &before); err != nil {
		return err
	}
	fmt.Printf("ready\n%d\n", child)
	return errors.Join(syscall.PtraceDetach(child), syscall.PtraceDetach(pid))
}

// stopped waits until a traced process has stopped, for at most a minute.
func stopped(pid int) error {
	for range 6000 {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG|syscall.WALL, nil)
		if err != nil || got == pid && status.Stopped() {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("pid %d does not stop", pid)
}

// forkIn makes a stopped process fork. A pending signal of that process can interrupt the fork. forkIn then tries
// again.
func forkIn(pid int, regs syscall.PtraceRegs) (child int, err error) {
	regs.Rax, regs.Orig_rax = syscall.SYS_FORK, ^uint64(0)
	var message uint
	for try := 0; try < 10 && message == 0; try++ {
		if err := errors.Join(syscall.PtraceSetRegs(pid, &regs), syscall.PtraceSingleStep(pid), stopped(pid)); err != nil {
			return 0, err
		}
		if message, err = syscall.PtraceGetEventMsg(pid); err != nil {
			return 0, err
		}
	}
	if message == 0 {
		return 0, errors.New("no child")
	}
	if err := errors.Join(syscall.PtraceSingleStep(pid), stopped(pid), stopped(int(message))); err != nil {
		return 0, err
	}
	return int(message), nil
}

// execIn makes a stopped process execute a program. The arguments are in memory below the used part of its stack.
func execIn(pid int, regs syscall.PtraceRegs, path, arg string) error {
	at := regs.Rsp - 4096
	words := make([]byte, 24)
	binary.LittleEndian.PutUint64(words, at+24)
	binary.LittleEndian.PutUint64(words[8:], at+24+uint64(len(path))+1)
	words = append(words, (path + "\x00" + arg + "\x00")...)
	if _, err := syscall.PtracePokeData(pid, uintptr(at), words); err != nil {
		return err
	}
	regs.Rax, regs.Orig_rax = syscall.SYS_EXECVE, ^uint64(0)
	regs.Rdi, regs.Rsi, regs.Rdx = at+24, at, 0
	return errors.Join(syscall.PtraceSetRegs(pid, &regs), syscall.PtraceSingleStep(pid), stopped(pid))
}
