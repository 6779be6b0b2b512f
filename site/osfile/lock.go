// SPDX-License-Identifier: Apache-2.0

package osfile

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// ErrLocked means that another process held a lock until the deadline.
var ErrLocked = errors.New("locked by another process")

// Flock takes the lock of an open file. It waits until ctx ends and then returns ErrLocked. It polls, because a blocked
// flock cannot be cancelled. The kernel releases the lock at the file's last close or at the process's end.
func Flock(ctx context.Context, file *os.File) error {
	pause := time.Millisecond
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if !wait.Sleep(ctx, pause) {
			return ErrLocked
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// CanOpen reports whether this process may open a device file for reading and writing. access(2) fails if a control
// group denies the device. The call has no effect on the device.
func CanOpen(path string) bool { return unix.Access(path, unix.R_OK|unix.W_OK) == nil }

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream io.Writer) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
