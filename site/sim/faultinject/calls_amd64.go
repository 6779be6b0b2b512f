// SPDX-License-Identifier: Apache-2.0

package faultinject

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// harmless calls change nothing that remains after the process, and no test makes them fail. They concern its memory,
// threads, signals and clocks, what it reads, and what it waits for.
var harmless = set(
	unix.SYS_BRK, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_MINCORE,
	unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_SET_TID_ADDRESS, unix.SYS_ARCH_PRCTL,
	unix.SYS_GETTID, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_MEMBARRIER, unix.SYS_SCHED_GETAFFINITY, unix.SYS_RESTART_SYSCALL,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RT_SIGPENDING,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_GETTIMEOFDAY, unix.SYS_TIME,
	unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE,
	unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_READV, unix.SYS_LSEEK, unix.SYS_FSTAT, unix.SYS_FSTATFS, unix.SYS_STATFS,
	unix.SYS_ACCESS, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINK, unix.SYS_READLINKAT, unix.SYS_GETCWD, unix.SYS_UNAME,
	unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETRANDOM,
	unix.SYS_SYSINFO, unix.SYS_GETRLIMIT, unix.SYS_GETPGID, unix.SYS_GETPGRP, unix.SYS_GETSID, unix.SYS_GETGROUPS,
	unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE, unix.SYS_FCNTL, unix.SYS_DUP, unix.SYS_DUP2, unix.SYS_DUP3, unix.SYS_SOCKET, unix.SYS_FADVISE64,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_WAIT, unix.SYS_EVENTFD2, unix.SYS_POLL,
	unix.SYS_PPOLL, unix.SYS_SELECT, unix.SYS_PSELECT6, unix.SYS_WAIT4, unix.SYS_WAITID,
)

// asking calls leave nothing when the process dies, but their failure may matter.
var asking = set(
	unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_FLOCK, unix.SYS_PIPE2, unix.SYS_PIDFD_OPEN, unix.SYS_GETDENTS64, unix.SYS_STAT,
	unix.SYS_LSTAT, unix.SYS_NEWFSTATAT, unix.SYS_STATX, unix.SYS_PRCTL, unix.SYS_PRLIMIT64, unix.SYS_SETRLIMIT, unix.SYS_CHDIR,
	unix.SYS_SETSID, unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETGROUPS, unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_UMASK,
)

// form is a call's name and the kinds of its arguments: p is a path, a the folder of the path that follows, f a
// descriptor, n a number, and - is not printed.
type form struct{ name, arguments string }

// forms names the calls that are expected. A call that is not in the list is also an effect, with its number as its
// name.
var forms = map[uint64]form{
	unix.SYS_OPEN: {"open", "p"}, unix.SYS_OPENAT: {"openat", "ap"}, unix.SYS_OPENAT2: {"openat2", "ap"}, unix.SYS_CREAT: {"creat", "p"},
	unix.SYS_WRITE: {"write", "f"}, unix.SYS_PWRITE64: {"pwrite64", "f"}, unix.SYS_WRITEV: {"writev", "f"},
	unix.SYS_RENAME: {"rename", "pp"}, unix.SYS_RENAMEAT: {"renameat", "apap"}, unix.SYS_RENAMEAT2: {"renameat2", "apap"},
	unix.SYS_LINK: {"link", "pp"}, unix.SYS_LINKAT: {"linkat", "apap"}, unix.SYS_SYMLINK: {"symlink", "pp"}, unix.SYS_SYMLINKAT: {"symlinkat", "pap"},
	unix.SYS_UNLINK: {"unlink", "p"}, unix.SYS_UNLINKAT: {"unlinkat", "apn"}, unix.SYS_RMDIR: {"rmdir", "p"},
	unix.SYS_MKDIR: {"mkdir", "p"}, unix.SYS_MKDIRAT: {"mkdirat", "ap"}, unix.SYS_MKNODAT: {"mknodat", "ap"},
	unix.SYS_CHMOD: {"chmod", "p"}, unix.SYS_FCHMOD: {"fchmod", "f"}, unix.SYS_FCHMODAT: {"fchmodat", "ap"},
	unix.SYS_CHOWN: {"chown", "p"}, unix.SYS_LCHOWN: {"lchown", "p"}, unix.SYS_FCHOWN: {"fchown", "f"}, unix.SYS_FCHOWNAT: {"fchownat", "ap"},
	unix.SYS_TRUNCATE: {"truncate", "p"}, unix.SYS_FTRUNCATE: {"ftruncate", "f"}, unix.SYS_FALLOCATE: {"fallocate", "f"},
	unix.SYS_UTIMENSAT: {"utimensat", "ap"}, unix.SYS_MOUNT: {"mount", "pp"}, unix.SYS_UMOUNT2: {"umount2", "p"}, unix.SYS_IOCTL: {"ioctl", "fn"},
	unix.SYS_CLONE: {"clone", ""}, unix.SYS_CLONE3: {"clone3", ""}, unix.SYS_FORK: {"fork", ""}, unix.SYS_VFORK: {"vfork", ""},
	unix.SYS_EXECVE: {"execve", "p"}, unix.SYS_KILL: {"kill", "-n"}, unix.SYS_TKILL: {"tkill", "-n"}, unix.SYS_TGKILL: {"tgkill", "--n"},
	unix.SYS_PIDFD_SEND_SIGNAL: {"pidfd_send_signal", "-n"}, unix.SYS_CONNECT: {"connect", "f"}, unix.SYS_SENDTO: {"sendto", "f"},
	unix.SYS_SENDMSG: {"sendmsg", "f"}, unix.SYS_FSYNC: {"fsync", "f"}, unix.SYS_FDATASYNC: {"fdatasync", "f"}, unix.SYS_FLOCK: {"flock", "f"},
	unix.SYS_PIPE2: {"pipe2", ""}, unix.SYS_PIDFD_OPEN: {"pidfd_open", ""}, unix.SYS_GETDENTS64: {"getdents64", "f"},
	unix.SYS_STAT: {"stat", "p"}, unix.SYS_LSTAT: {"lstat", "p"}, unix.SYS_NEWFSTATAT: {"newfstatat", "ap"}, unix.SYS_STATX: {"statx", "ap"},
	unix.SYS_PRCTL: {"prctl", "n"}, unix.SYS_PRLIMIT64: {"prlimit64", "-n"}, unix.SYS_SETRLIMIT: {"setrlimit", "n"}, unix.SYS_CHDIR: {"chdir", "p"},
	unix.SYS_SETSID: {"setsid", ""}, unix.SYS_SETUID: {"setuid", "n"}, unix.SYS_SETGID: {"setgid", "n"}, unix.SYS_SETGROUPS: {"setgroups", "n"},
	unix.SYS_UMASK: {"umask", "n"},
}

func set(calls ...uint64) map[uint64]bool {
	all := map[uint64]bool{}
	for _, call := range calls {
		all[call] = true
	}
	return all
}

func arguments(regs *unix.PtraceRegs) [6]uint64 {
	return [6]uint64{regs.Rdi, regs.Rsi, regs.Rdx, regs.R10, regs.R8, regs.R9}
}

// decode describes a call that is about to be made. It returns false if the call is harmless.
func decode(tid int, regs *unix.PtraceRegs) (Effect, bool) {
	number, args := regs.Orig_rax, arguments(regs)
	if harmless[number] || ofItself(tid, number, args) {
		return Effect{}, false
	}
	form, known := forms[number]
	if !known {
		form.name = fmt.Sprintf("call %d", number)
	}
	effect := Effect{Call: form.name, What: describe(tid, form.arguments, args), Asks: asking[number]}
	switch number {
	case unix.SYS_OPEN:
		effect.Asks = !writes(args[1])
	case unix.SYS_OPENAT:
		effect.Asks = !writes(args[2])
	case unix.SYS_OPENAT2:
		effect.Asks = !writes(word(tid, args[2]))
	case unix.SYS_EXECVE:
		effect.What = strings.Join(list(tid, args[1]), " ")
	case unix.SYS_WRITE:
		if effect.What == "anon_inode:[eventfd]" || args[0] == 1 || args[0] == 2 { // a wake-up of the Go runtime, or a message to the user
			return Effect{}, false
		}
		if effect.What == "pipe" {
			effect.What += fmt.Sprintf(" %q", memory(tid, args[1], min(int(args[2]), 80)))
		}
	}
	return effect, effect.What != os.DevNull
}

// writes reports whether open's flags create a file or allow changes to it.
func writes(flags uint64) bool {
	return flags&(unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_RDWR) != 0
}

// ofItself reports whether a call of a powerful kind affects only its own process: a new thread, a signal to a
// thread, or a limit or an option that is read.
func ofItself(tid int, number uint64, args [6]uint64) bool {
	switch number {
	case unix.SYS_CLONE:
		return args[0]&unix.CLONE_THREAD != 0
	case unix.SYS_CLONE3:
		return word(tid, args[0])&unix.CLONE_THREAD != 0
	case unix.SYS_TGKILL:
		return int(args[0]) == processOf(tid)
	case unix.SYS_PRLIMIT64:
		return args[2] == 0
	case unix.SYS_PRCTL:
		return args[0] != unix.PR_SET_CHILD_SUBREAPER && args[0] != unix.PR_SET_PDEATHSIG
	case unix.SYS_IOCTL:
		return args[1] == unix.TCGETS
	}
	return false
}

// describe returns the arguments of a call as text.
func describe(tid int, kinds string, args [6]uint64) string {
	var words []string
	folder := ""
	for i, kind := range kinds {
		switch kind {
		case 'a':
			if folder = ""; int32(args[i]) != unix.AT_FDCWD {
				folder = descriptor(tid, args[i]) + "/"
			}
		case 'p':
			path := memory(tid, args[i], unix.PathMax)
			if !strings.HasPrefix(path, "/") {
				path = strings.TrimSuffix(folder+path, "/")
			}
			words = append(words, path)
		case 'f':
			words = append(words, descriptor(tid, args[i]))
		case 'n':
			words = append(words, fmt.Sprint(int64(args[i])))
		}
	}
	return strings.Join(words, " ")
}

// descriptor returns the file, pipe or socket behind a thread's descriptor.
func descriptor(tid int, fd uint64) string {
	target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, fd))
	if err != nil {
		return "?"
	}
	kind, _, numbered := strings.Cut(target, ":[")
	if numbered && (kind == "pipe" || kind == "socket") {
		return kind
	}
	return target
}

const page = 4096

// memory reads the string at an address of a thread, up to its final NUL and to at most limit bytes.
func memory(tid int, address uint64, limit int) string {
	text := make([]byte, limit)
	var parts []unix.RemoteIovec // one for each page: an absent page does not hide the page before it
	for at, left := uintptr(address), limit; left > 0; {
		n := min(left, page-int(at%page))
		parts = append(parts, unix.RemoteIovec{Base: at, Len: n})
		at, left = at+uintptr(n), left-n
	}
	local := []unix.Iovec{{Base: &text[0]}}
	local[0].SetLen(limit)
	n, err := unix.ProcessVMReadv(tid, local, parts, 0)
	if err != nil {
		return "?"
	}
	text, _, _ = bytes.Cut(text[:n], []byte{0})
	return string(text)
}

// list reads the strings of a list that ends with a null pointer, such as a program's arguments.
func list(tid int, address uint64) []string {
	var all []string
	for at := address; len(all) < 64; at += 8 {
		text := word(tid, at)
		if text == 0 {
			break
		}
		all = append(all, memory(tid, text, unix.PathMax))
	}
	return all
}

// word reads the 8 bytes at an address: the flags at the start of a call's structure.
func word(tid int, address uint64) uint64 {
	var bytes [8]byte
	local := []unix.Iovec{{Base: &bytes[0]}}
	local[0].SetLen(len(bytes))
	if _, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(bytes)}}, 0); err != nil {
		return 0
	}
	var value uint64
	for i, b := range bytes {
		value |= uint64(b) << (8 * i)
	}
	return value
}

// skip makes the kernel skip the call. answer sets the result that the program then finds.
func skip(regs *unix.PtraceRegs) { regs.Orig_rax = ^uint64(0) }

func answer(regs *unix.PtraceRegs, errno syscall.Errno) { regs.Rax = uint64(-int64(errno)) }

func succeeded(regs *unix.PtraceRegs) bool { return int64(regs.Rax) >= 0 || int64(regs.Rax) < -4095 }
