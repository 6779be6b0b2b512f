// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// initialPIDNamespace is the link of every process that is in no pid namespace but the machine's own. Its number is a
// constant of the kernel.
const initialPIDNamespace = "pid:[4026531836]"

// InOwnPIDNamespace reports whether this process is in another pid namespace than the machine's own. Processes outside
// of it have no pid there.
func InOwnPIDNamespace() bool {
	link, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && link != initialPIDNamespace
}

// Bound reports whether a process has a socket that is bound to path. It connects a datagram socket: the kernel refuses
// that for a socket of another type, and the process notices nothing. So it works in all namespaces, if path is mounted.
func Bound(path string) (bool, error) {
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
