// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"os"
	"time"

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
		if !Sleep(ctx, pause) {
			return ErrLocked
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// Sleep waits for d, or until ctx ends. It reports whether ctx has not ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
