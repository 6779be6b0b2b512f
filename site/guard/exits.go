// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
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
//
// Before Linux 6.15, two sources tell of threads. A zombie's status may be that of its first thread, which may have
// ended before the others. The connector tells of each thread's end, after the kernel has told of the process's end. So
// a status of 0 counts only if no thread has ended with another status until settleTime after the process's end.

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

// settleTime is the time after a process's end in which the connector's last message comes. The kernel sends it in the
// same call of the last thread, so it takes longer only if that thread waits for a processor.
const settleTime = 50 * time.Millisecond

// exits knows how clients have ended.
type exits struct {
	whole     bool // a zombie's status and a pidfd's are the process's
	connector int  // a netlink socket, or -1
	pids      []int
	seen      map[int]exitStatus // by pid, until the client is forgotten
}

// openExits opens the proc connector, unless this kernel's pidfds report the status.
func openExits() exits {
	e := exits{connector: -1, seen: map[int]exitStatus{}}
	var name unix.Utsname
	if unix.Uname(&name) == nil && atLeast(unix.ByteSliceToString(name.Release[:]), 6, 15) {
		e.whole = true
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

// of returns how the process of a pidfd has ended. The pidfd must be readable. Another status than 0 is final. A status
// of 0 is final settleTime after the process's end.
func (e *exits) of(k *kernel, pidfd, pid int) exitStatus {
	s := zombieStatus(k, pid)
	if !s.known {
		s = pidfdStatus(pidfd)
	}
	if s.known && (e.whole || !s.inOrder()) {
		return s
	}
	e.drain()
	return e.seen[pid]
}

// zombieStatus reads the status of a process that has ended and is not reaped. No other process can have its pid.
func zombieStatus(k *kernel, pid int) exitStatus {
	stat, err := k.stat(pid) // the pid may be another process's by now, which does not answer
	return exitStatus{stat.Exit, err == nil && !stat.Running()}
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
		return -1, err
	}
	err = errors.Join(
		filter(fd, nil),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: connectorIndex}),
		unix.Sendto(fd, listenMessage(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
	)
	if err != nil {
		unix.Close(fd)
		return -1, err
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

// follow makes the socket receive the ends of these clients, and forgets all others. The kernel drops the other
// messages, so a node with thousands of other processes does not wake the guard and does not fill the socket.
func (e *exits) follow(living map[int]*client, dead []*client) {
	if e.connector < 0 {
		return
	}
	whole := e.drain()
	pids := slices.Collect(maps.Keys(living))
	for _, c := range dead {
		if c.unsettled {
			pids = append(pids, c.proc.PID)
		}
	}
	slices.Sort(pids)
	maps.DeleteFunc(e.seen, func(pid int, _ exitStatus) bool { return !slices.Contains(pids, pid) })
	if !slices.Equal(pids, e.pids) && filter(e.connector, pids) == nil {
		e.pids = pids
	}
	if !whole {
		e.lose()
	}
}

// filter makes a socket receive only ends of these processes' first threads, and of their other threads if they ended
// with another status than 0. So a program with thousands of short threads does not fill the socket.
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
	code := []unix.SockFilter{
		load(eventOffset), skip(procExit, 1, 0), end(none),
		load(codeOffset), skip(0, 0, 5), // another status than 0: to the last load
		load(pidOffset), {Code: unix.BPF_MISC | unix.BPF_TAX}, load(tgidOffset),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_X, Jt: 1}, end(none),
		load(tgidOffset),
	}
	for _, pid := range pids {
		code = append(code, skip(uint32(pid), 0, 1), end(all))
	}
	code = append(code, end(none))
	program := &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program)
}

// drain reads the ends that the socket has received. It reports whether it has read all.
func (e *exits) drain() (all bool) {
	if e.connector < 0 {
		return true
	}
	var buffer [512]byte
	for range maxFiles {
		n, sender, err := unix.Recvfrom(e.connector, buffer[:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.ENOBUFS): // the socket was full, and the kernel has dropped messages
			e.lose()
		case err != nil:
			return true
		default:
			e.note(buffer[:n], sender)
		}
	}
	e.lose()
	return false
}

// note takes a message of the kernel. A process has ended with status 0 if its first thread has, and no other thread
// has ended with another status: a signal and exit_group give all living threads the same one.
func (e *exits) note(m []byte, sender unix.Sockaddr) {
	kernel, ok := sender.(*unix.SockaddrNetlink)
	if !ok || kernel.Pid != 0 || len(m) < messageSize || binary.NativeEndian.Uint32(m[eventOffset:]) != procExit {
		return
	}
	pid, tgid := binary.NativeEndian.Uint32(m[pidOffset:]), int(binary.NativeEndian.Uint32(m[tgidOffset:]))
	s := exitStatus{binary.NativeEndian.Uint32(m[codeOffset:]), true}
	if _, noted := e.seen[tgid]; !s.inOrder() || !noted && int(pid) == tgid {
		e.seen[tgid] = s
	}
}

// lose notes that messages are lost. A status of 0 of the processes that are followed is not known any more.
func (e *exits) lose() {
	for _, pid := range e.pids {
		if e.seen[pid].inOrder() || !e.seen[pid].known {
			e.seen[pid] = exitStatus{}
		}
	}
}

func (e *exits) close() {
	if e.connector >= 0 {
		unix.Close(e.connector)
	}
}
