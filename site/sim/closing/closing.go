// SPDX-License-Identifier: Apache-2.0

// Package closing makes a guard's closes of simulated driver files as slow as the driver's on a GPU. There the last
// close of a client's memory files takes long, one after the other: the epilog of a job with clients took 90 to 310 ms
// more on an H100 with 3 to 8 clients, and 160 to 385 ms on two with 8. In the simulation the files are regular ones,
// which close at once. So an end is too kind, unless this package is used.
//
// The guard runs below a seccomp filter (launch/launch.c), which tells each of its closes to this process. A close of a
// memory file of a client that has ended waits until this process answers. No other process is slower: a client's own
// close is over before the epilog begins. A guard that is killed closes its files at once.
package closing

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PerClient is the time of the driver for the files of one client, on H100s (driver 580.159.04): 313 ms for 8 clients,
// 86 ms for 3.
const PerClient = 35 * time.Millisecond

// filesOfClient is how often a client has opened the memory driver.
const filesOfClient = 2

// Slow is a listener for guards with slow closes.
type Slow struct {
	Bin string // the folder of the programs, with such a guard

	listener *net.UnixListener
	perFile  time.Duration
	driver   sync.Mutex // the driver's lock: it closes one file at a time
	slowed   atomic.Int64
	failed   atomic.Pointer[error]
	wait     sync.WaitGroup
}

// Start copies the programs of the folder bin into dir, with launcher (a build of launch/launch.c) in place of the guard.
// A client's files then take its guard perClient to close. No guard of the folder may run when Stop is called.
func Start(dir, bin, launcher string, perClient time.Duration) (*Slow, error) {
	s := &Slow{Bin: filepath.Join(dir, "bin"), perFile: perClient / filesOfClient}
	if err := s.install(dir, bin, launcher); err != nil {
		return nil, fmt.Errorf("cannot slow down the guard's closes: %w", err)
	}
	var err error
	s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "closing"), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot slow down the guard's closes: %w", err)
	}
	s.wait.Go(s.accept)
	return s, nil
}

// install makes dir/bin with all programs, and dir/real with the guard and what it starts.
func (s *Slow) install(dir, bin, launcher string) error {
	real := filepath.Join(dir, "real")
	for _, folder := range []string{s.Bin, real} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	programs, err := os.ReadDir(bin)
	if err != nil {
		return err
	}
	for _, p := range programs {
		from, to := filepath.Join(bin, p.Name()), filepath.Join(s.Bin, p.Name())
		switch {
		case p.Name() == "guard":
			err = errors.Join(copyProgram(from, filepath.Join(real, "guard")), copyProgram(launcher, to))
		case p.Type() == fs.ModeSymlink:
			err = link(from, to)
		default:
			err = copyProgram(from, to)
		}
		if err == nil && p.Name() != "guard" {
			err = os.Symlink(to, filepath.Join(real, p.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func link(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	return os.Symlink(target, to)
}

func copyProgram(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

// Slowed returns how many closes have been slowed down.
func (s *Slow) Slowed() int { return int(s.slowed.Load()) }

// Stop ends the listener. Its error is the first one since the start.
func (s *Slow) Stop() error {
	err := s.listener.Close()
	s.wait.Wait()
	if failed := s.failed.Load(); failed != nil {
		return *failed
	}
	return err
}

func (s *Slow) fail(err error) {
	err = fmt.Errorf("cannot slow down a close: %w", err)
	s.failed.CompareAndSwap(nil, &err)
}

// accept serves each guard that starts.
func (s *Slow) accept() {
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var notices int
		if err == nil {
			notices, err = receive(conn)
		}
		if err != nil {
			s.fail(err)
			continue
		}
		s.wait.Go(func() {
			if err := s.serve(notices); err != nil {
				s.fail(err)
			}
		})
	}
}

// receive returns the descriptor that a guard's launcher sends.
func receive(conn *net.UnixConn) (fd int, err error) {
	defer conn.Close()
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return -1, err
	}
	if len(messages) == 0 {
		return -1, io.ErrUnexpectedEOF
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// notice is the kernel's struct seccomp_notif.
type notice struct {
	id    uint64
	pid   uint32 // of the thread
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// answer is struct seccomp_notif_resp.
type answer struct {
	id    uint64
	value int64
	err   int32
	flags uint32
}

// serve answers the closes of a guard and of its processes, until all have ended.
func (s *Slow) serve(notices int) error {
	defer unix.Close(notices)
	var slow sync.WaitGroup
	defer slow.Wait()
	for {
		poll := []unix.PollFd{{Fd: int32(notices), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if poll[0].Revents&unix.POLLHUP != 0 {
			return nil
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			continue
		}
		var n notice
		if err := control(notices, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); err != nil {
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) { // the thread has ended
				continue
			}
			return err
		}
		if !ofADeadClient(int(n.pid), int(int32(n.args[0]))) {
			if err := goOn(notices, n.id); err != nil {
				return err
			}
			continue
		}
		slow.Go(func() {
			s.driver.Lock()
			time.Sleep(s.perFile)
			s.driver.Unlock()
			s.slowed.Add(1)
			if err := goOn(notices, n.id); err != nil {
				s.fail(err)
			}
		})
	}
}

// goOn lets a close go on. It is no error if the thread has ended.
func goOn(notices int, id uint64) error {
	a := answer{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if err := control(notices, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a)); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func control(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// locked finds the byte that a simulated driver file has locked, in /proc/PID/fdinfo/N.
var locked = regexp.MustCompile(`(?m)^lock:.* OFDLCK .* (\d+) \d+$`)

// ofADeadClient reports whether a thread's descriptor is a memory file of a client that has ended. The byte that an
// opening has locked names the process: README.md of the simulated node.
func ofADeadClient(thread, fd int) bool {
	file, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", thread, fd))
	if err != nil || filepath.Base(file) != "nvidia-uvm" {
		return false
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", thread, fd))
	if err != nil {
		return false
	}
	match := locked.FindSubmatch(info)
	if match == nil {
		return false
	}
	number, err := strconv.Atoi(string(match[1]))
	if err != nil {
		return false
	}
	_, err = os.Stat(fmt.Sprintf("/proc/%d/fd/0", number/filesOfClient))
	return err != nil // a zombie has no descriptors
}
