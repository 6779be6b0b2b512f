// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// missedTicket is the time between two checks of the folder if the kernel allows no watch.
const missedTicket = time.Second

// watchTicket closes a channel when a job's ticket is withdrawn. The epilog removes the ticket first.
func watchTicket(path string) (withdrawn <-chan struct{}) {
	gone := make(chan struct{})
	wait := watch(filepath.Dir(path))
	go func() {
		for exists(path) {
			wait()
		}
		close(gone)
	}()
	return gone
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// watch returns a function that waits for a change in a folder.
func watch(folder string) func() {
	sleep := func() { time.Sleep(missedTicket) }
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return sleep
	}
	if _, err := unix.InotifyAddWatch(fd, folder, unix.IN_DELETE|unix.IN_ONLYDIR); err != nil {
		unix.Close(fd)
		return sleep
	}
	buffer := make([]byte, 4096)
	return func() {
		if n, err := unix.Read(fd, buffer); err != unix.EINTR && n <= 0 {
			sleep()
		}
	}
}
