// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"bytes"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site/serverlog"
	"golang.org/x/sys/unix"
)

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
