// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel reports how a process has ended to its parent. The guard is not the parent of a client. It asks three
// sources in turn, and each knows only some ends:
//
//	/proc/PID/stat          a process that its parent has not reaped yet, on every kernel
//	PIDFD_GET_INFO          a process that has been reaped, since Linux 6.15
//	the proc connector      all processes, since Linux 2.6.15, if this process is in the first namespaces
//
// An end that no source knows counts as an end with work in flight.

// exitStatus is how a process has ended, as in wait(2): the exit code times 256, or the number of a signal.
type exitStatus struct {
	raw   uint32
	known bool
}

// inOrder reports whether a process has ended with status 0. Such a process has nearly always waited for its work.
func (s exitStatus) inOrder() bool { return s.known && s.raw&0xffff == 0 }

// String returns "status 3" or "signal 9", or "" if the end is not known.
func (s exitStatus) String() string {
	switch signal := s.raw & 0x7f; {
	case !s.known:
		return ""
	case signal != 0:
		return "signal " + strconv.Itoa(int(signal))
	}
	return "status " + strconv.Itoa(int(s.raw>>8&0xff))
}

// exits knows how clients have ended.
type exits struct {
	connector int // a netlink socket, or -1
	pids      []int
	seen      map[int]uint32 // by pid, until the client is forgotten
}

// openExits opens the proc connector, unless this kernel's pidfds report the status.
func openExits() exits {
	e := exits{connector: -1, seen: map[int]uint32{}}
	var name unix.Utsname
	if unix.Uname(&name) == nil && atLeast(unix.ByteSliceToString(name.Release[:]), 6, 15) {
		return e
	}
	e.connector, _ = openConnector() // without it, some ends are not known
	return e
}

// atLeast reports whether a kernel's release, as in "5.14.0-427.el9", is this version or a later one.
func atLeast(release string, major, minor int) bool {
	var x, y int
	_, err := fmt.Sscanf(release, "%d.%d", &x, &y)
	return err == nil && (x > major || x == major && y >= minor)
}

// of returns how the process of a pidfd has ended. The pidfd must be readable.
func (e *exits) of(k *kernel, pidfd, pid int) exitStatus {
	if s := zombieStatus(k, pid); s.known {
		return s
	}
	if s := pidfdStatus(pidfd); s.known {
		return s
	}
	e.drain()
	raw, known := e.seen[pid]
	return exitStatus{raw, known}
}

// zombieStatus reads the status of a process that has ended and is not reaped. No other process can have its pid.
func zombieStatus(k *kernel, pid int) exitStatus {
	stat, err := k.stat(pid) // the pid may be another process's by now, which does not answer
	return exitStatus{stat.Exit, err == nil && stat.State == 'Z'}
}

// pidfdInfo is the kernel's struct pidfd_info of Linux 6.15.
type pidfdInfo struct {
	Mask, CgroupID                                                uint64
	PID, TGID, PPID, RUID, RGID, EUID, EGID, SUID, SGID, FSU, FSG uint32
	ExitCode                                                      int32
}

const (
	pidfdInfoExit = 1 << 3
	// pidfdGetInfo is PIDFD_GET_INFO: _IOWR(0xFF, 11, struct pidfd_info).
	pidfdGetInfo = 3<<30 | uint(unsafe.Sizeof(pidfdInfo{}))<<16 | 0xFF<<8 | 11
)

// pidfdStatus asks a pidfd how its process has ended.
func pidfdStatus(pidfd int) exitStatus {
	info := pidfdInfo{Mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), uintptr(pidfdGetInfo), uintptr(unsafe.Pointer(&info)))
	return exitStatus{uint32(info.ExitCode), errno == 0 && info.Mask&pidfdInfoExit != 0}
}

const (
	connectorIndex = 1 // CN_IDX_PROC and CN_VAL_PROC
	listenOp       = 1 // PROC_CN_MCAST_LISTEN
	procExit       = 0x80000000
	// The positions of fields in a message of the connector: a header of netlink, a cn_msg and a proc_event.
	eventOffset, pidOffset, tgidOffset, codeOffset, messageSize = 36, 52, 56, 60, 76
)

// openConnector opens a socket that receives the ends of no process until follow names some.
func openConnector() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_CONNECTOR)
	if err != nil {
		return -1, fmt.Errorf("cannot open the proc connector: %w", err)
	}
	err = errors.Join(
		filter(fd, nil),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: connectorIndex}),
		unix.Sendto(fd, listenMessage(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
	)
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("cannot listen to the proc connector: %w", err)
	}
	return fd, nil
}

// listenMessage asks the kernel to send events.
func listenMessage() []byte {
	const size = 16 + 20 + 4
	m := make([]byte, size)
	binary.NativeEndian.PutUint32(m[0:], size)
	binary.NativeEndian.PutUint16(m[4:], unix.NLMSG_DONE)
	binary.NativeEndian.PutUint32(m[16:], connectorIndex)
	binary.NativeEndian.PutUint32(m[20:], connectorIndex)
	binary.NativeEndian.PutUint16(m[32:], 4)
	binary.NativeEndian.PutUint32(m[36:], listenOp)
	return m
}

// follow makes the socket receive the ends of these processes, and forgets all others. The kernel drops the other
// messages, so a node with thousands of other processes does not wake the guard and does not fill the socket.
func (e *exits) follow(living map[int]*client) {
	if e.connector < 0 {
		return
	}
	e.drain()
	maps.DeleteFunc(e.seen, func(pid int, _ uint32) bool { return living[pid] == nil })
	pids := slices.Sorted(maps.Keys(living))
	if !slices.Equal(pids, e.pids) && filter(e.connector, pids) == nil {
		e.pids = pids
	}
}

// filter makes a socket receive only ends of the first threads of these processes.
func filter(fd int, pids []int) error {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// A filter loads numbers as big endian.
	skip := func(n uint32, equal, other uint8) unix.SockFilter {
		var b [4]byte
		binary.NativeEndian.PutUint32(b[:], n)
		const code = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		return unix.SockFilter{Code: code, Jt: equal, Jf: other, K: binary.BigEndian.Uint32(b[:])}
	}
	const all, none = 0xffffffff, 0
	end := func(size uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: size} }
	code := []unix.SockFilter{load(eventOffset), skip(procExit, 1, 0), end(none), load(pidOffset)}
	for _, pid := range pids {
		code = append(code, skip(uint32(pid), 0, 1), end(all))
	}
	code = append(code, end(none))
	program := &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program)
}

// drain reads the ends that the socket has received.
func (e *exits) drain() {
	if e.connector < 0 {
		return
	}
	var buffer [512]byte
	for range maxFiles {
		n, sender, err := unix.Recvfrom(e.connector, buffer[:], unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		kernel, ok := sender.(*unix.SockaddrNetlink)
		if m := buffer[:n]; ok && kernel.Pid == 0 && n >= messageSize { // from the kernel
			pid, tgid := binary.NativeEndian.Uint32(m[pidOffset:]), binary.NativeEndian.Uint32(m[tgidOffset:])
			if binary.NativeEndian.Uint32(m[eventOffset:]) == procExit && pid == tgid {
				e.seen[int(pid)] = binary.NativeEndian.Uint32(m[codeOffset:])
			}
		}
	}
}

func (e *exits) close() {
	if e.connector >= 0 {
		unix.Close(e.connector)
	}
}
