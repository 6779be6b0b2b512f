// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Bound reports whether a process has a socket that is bound to path. It connects a datagram socket. The kernel
// refuses this for a socket of another type, and the process notices nothing. So Bound works in all namespaces, if
// path is mounted.
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
