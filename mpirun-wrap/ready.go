// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// unavailableError means that a placement cannot use MPS. do is the advice for the user, "" if there is none.
type unavailableError struct {
	cause error
	do    string
}

func (e *unavailableError) Error() string { return strings.TrimSuffix(e.cause.Error()+": "+e.do, ": ") }
func (e *unavailableError) Unwrap() error { return e.cause }

// checkDaemon checks that the placement's daemon runs: its process by pid and start time, and its socket. It does not
// ask the daemon, because a third of simultaneous questions of all ranks would fail (measured). The error is an
// *unavailableError. giveUp gets it, and ends the program, if the daemon is in an exec, into which only its user brings it.
func (p *Placement) checkDaemon(giveUp func(error)) error {
	socket := filepath.Join(p.Daemon.PipeDir, "control")
	silent := func() {
		giveUp(p.off("submit the job again", "its control daemon (%s): %w", p.Daemon.Proc, proc.ErrSilent))
	}
	if !p.Daemon.Proc.RunningOr(silent) {
		if !proc.InOwnNamespace("pid") {
			return p.off("the job's epilog cleans up; submit the job again, and tell no MPS daemon to quit in its script",
				"its control daemon (%s) is gone", p.Daemon.Proc)
		}
		// The daemon has no pid here. It is enough that a process has the socket that the ticket names, because only root
		// writes the ticket. A user who replaces the daemon deceives only the own ranks.
		if is, err := bound(socket); err != nil {
			return p.off(mountAll, "%w", err)
		} else if !is {
			return p.off(mountAll, "no control daemon has the socket %s", socket)
		}
	}
	info, err := os.Lstat(socket)
	if err != nil {
		return p.off(mountAll, "%w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return p.off("", "%s is not a socket", socket)
	}
	return nil
}

// mountAll is the advice if the daemon's socket is missing. Each job's folder may be a file system of its own.
const mountAll = "submit the job again; a container must mount /run/slurm-mps with all file systems in it (rbind)"

func (p *Placement) off(do, format string, values ...any) error {
	return &unavailableError{fmt.Errorf("cannot use MPS on %s: %w", p.Device.UUID, fmt.Errorf(format, values...)), do}
}

// The time for which a rank waits for a server that recovers from a fatal error. A server recovers within 0.1 s of
// the end of the last affected process (measured). It takes longer only if such a process does not end.
const (
	recovery     = 30 * time.Second
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// waitReady checks that MPS accepts clients of a placement. After a fatal error, a server gives new clients error 807
// until the last affected process has ended. waitReady waits for that, and reports the wait by waits. It asks the
// daemon only if the server's log contains such an error. The error is an *unavailableError.
func (p *Placement) waitReady(ctx context.Context, mps MPS, waits func(what string), giveUp func(error)) error {
	if err := p.checkDaemon(giveUp); err != nil {
		return err
	}
	if readFault(logTail(p.Daemon.LogDir)).server == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	return p.recovered(ctx, mps, waits, giveUp)
}

// recovered waits until the server has recovered, or until ctx ends.
func (p *Placement) recovered(ctx context.Context, mps MPS, waits func(what string), giveUp func(error)) error {
	answered := false // so a last question that ctx cuts short hides no answer
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		if err := p.checkDaemon(giveUp); err != nil {
			return err
		}
		f := readFault(logTail(p.Daemon.LogDir))
		if f.server == 0 {
			return nil
		}
		state, err := mps.ServerStatus(ctx, p.Ticket, p.Daemon, f.server)
		if err == nil && state != "FAULT" {
			return nil
		}
		answered = answered || err == nil
		if waits != nil {
			waits(fmt.Sprintf("waiting up to %v for the MPS server of %s, which recovers from a fatal GPU error%s", recovery, p.Device.UUID, f.living()))
			waits = nil
		}
		if wait.Sleep(ctx, jittered(pause)) {
			continue
		}
		if answered {
			err = nil
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil // the log alone is no reason to refuse
		}
		if err != nil {
			return p.off("submit the job again", "its server (pid %d) had a fatal GPU error, and for %v nothing could be learned of it: %w", f.server, recovery, err)
		}
		return p.off("end what is left of the ranks that it hit, or submit the job again",
			"its server (pid %d) has not recovered from a fatal GPU error within %v%s", f.server, recovery, f.living())
	}
}

// living is the part of a message that lists the processes for which a server waits.
func (f fault) living() string {
	if len(f.clients) == 0 {
		return ""
	}
	slices.Sort(f.clients)
	list := fmt.Sprint(slices.Compact(f.clients))
	return ": these processes that it hit are still there: " + strings.Trim(list, "[]")
}

// jittered varies the pause, because all ranks of a node begin to wait at the same time.
func jittered(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }

// withGPUs returns env without MPS's variables, and with these GPUs.
func withGPUs(env []string, visible string) []string {
	return append(without(env, "CUDA_MPS_", "CUDA_VISIBLE_DEVICES="), "CUDA_VISIBLE_DEVICES="+visible)
}

// without returns an environment without the variables that begin with one of some prefixes.
func without(env []string, prefixes ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(entry, prefix) })
	})
}

const (
	// roomPause is the time between two looks at the job's room.
	roomPause = 10 * time.Millisecond
	// tellRoom is the time after which a rank that waits for room prints why. Most waits are shorter.
	tellRoom = time.Second
)

// waitRoom waits while dead clients take room on the rank's GPUs that the rank may need: memory, or one of the GPU's
// places. The job's guard publishes that, and says until when. read returns its publication. waitRoom calls
// waits once, after a second. It returns the time that it has waited: the policy's hold at most, also if clients die
// again and again, or if the node's clock is set back. If the room is not known, it does not wait.
func (p *Placement) waitRoom(ctx context.Context, read func() (lease.Room, error), waits func(what string)) time.Duration {
	began := time.Now()
	for {
		room, err := read()
		gpu, full := p.fullGPU(room)
		waited := time.Since(began)
		left := p.Ticket.Grant.Hold - waited
		if err != nil || !full || left <= 0 {
			return waited
		}
		if waits != nil && waited > tellRoom {
			waits(fmt.Sprintf("waiting for GPU %d: %s that ended may have work there (%v more at most)",
				gpu.Minor, words.Count(gpu.Dead, "rank"), min(left, time.Until(gpu.Until)).Round(time.Second)))
			waits = nil
		}
		if !wait.Sleep(ctx, roomPause) {
			return time.Since(began)
		}
	}
}

// fullGPU returns one of the rank's GPUs on which it must wait.
func (p *Placement) fullGPU(room lease.Room) (lease.FullGPU, bool) {
	for _, gpu := range room.GPUs {
		if !time.Now().Before(gpu.Until) {
			continue
		}
		for _, part := range p.parts() {
			if part.Device.Minor == gpu.Minor {
				return gpu, true
			}
		}
	}
	return lease.FullGPU{}, false
}

// A server's log shows whether a fatal error is over, so the daemon need not be asked. The log is in a folder of the
// user's. So it is read only if it is a regular file, and only its last tailBytes.
const tailBytes = 64 << 10 // a fault of 48 clients fills 15 KiB, and the launch of 48 fills 45 KiB (measured: 10 lines for each client)

// logTail returns the end of a server's log, or nothing if it cannot be read.
func logTail(dir string) []byte {
	file, st, err := openRegular(filepath.Join(dir, serverlog.Name), unix.O_RDONLY)
	if err != nil {
		return nil
	}
	defer file.close()
	tail := make([]byte, min(st.Size, tailBytes))
	n, _ := unix.Pread(file.fd, tail, max(0, st.Size-tailBytes))
	return tail[:max(n, 0)]
}

// fault is a fatal error in the log that is not over.
type fault struct {
	server  int   // its pid, 0 if there is no fault
	clients []int // affected processes that have not ended
	listed  bool  // the server has listed them
}

// Lines of the log: the begin of a fault, the refusal of a client during the fault, and the first client after it.
var (
	fatalError = []byte("fatal GPU error")
	refusal    = []byte("Server teardown in progress")
	restored   = []byte("Creating server context on device ")
)

// readFault reads the end of a log. A fault is over when every process has ended that was reported with the error.
// Until then new clients get 807, and after that none does (measured).
//
//	[2026-11-21 05:26:29.822 Server   829] Server is handling a fatal GPU error.
//	[2026-11-21 05:26:29.822 Server   829] The following devices will be reset:
//	[2026-11-21 05:26:29.822 Server   829] 0
//	[2026-11-21 05:26:29.822 Server   829] The following client process have a sticky error set:
//	[2026-11-21 05:26:29.822 Server   829] 957
//	[2026-11-21 05:26:29.938 Server   829] Client process 957 disconnected
func readFault(tail []byte) fault {
	if !bytes.Contains(tail, fatalError) && !bytes.Contains(tail, refusal) { // the usual case is fast
		return fault{}
	}
	var f fault
	sticky := false // the numbers are pids, not devices
	for line := range bytes.Lines(tail) {
		l, _ := serverlog.Parse(line)
		server, _ := strconv.Atoi(l.Server)
		text := l.Text
		number, err := strconv.Atoi(string(text))
		switch {
		case bytes.HasPrefix(text, restored):
			f = fault{}
		case bytes.Contains(text, fatalError):
			f.server, f.listed = server, false
		case bytes.HasPrefix(text, refusal):
			f.server = server
		case bytes.HasPrefix(text, []byte("The following ")):
			sticky = bytes.Contains(text, []byte("sticky error"))
		case err == nil && sticky && f.server != 0:
			f.clients, f.listed = append(f.clients, number), true
		default:
			f.leave(l)
		}
	}
	return f
}

// leave removes a process that has ended from a fault. The fault is over when it was the last.
func (f *fault) leave(l serverlog.Line) {
	ended, ok := l.Disconnected()
	if !ok {
		return
	}
	f.clients = slices.DeleteFunc(f.clients, func(pid int) bool { return pid == ended })
	if f.listed && len(f.clients) == 0 {
		*f = fault{}
	}
}

// bound reports whether a process has a socket that is bound to path. It connects a datagram socket. The kernel
// refuses this for a socket of another type, and the process notices nothing. So bound works in all namespaces, if
// path is mounted.
func bound(path string) (bool, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("cannot look for socket: %w", err)
	}
	defer unix.Close(fd)
	switch err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); {
	case err == nil, errors.Is(err, unix.EPROTOTYPE):
		return true, nil
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return false, nil
	default:
		return false, fmt.Errorf("cannot look for socket %s: %w", path, err)
	}
}
