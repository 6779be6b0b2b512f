// SPDX-License-Identifier: Apache-2.0

package gpuusage

import (
	"os"
	"path/filepath"
	"time"

	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// missedTicket is the time between two checks of the folder if the kernel allows no watch.
const missedTicket = time.Second

// watchTicket reports when a job's ticket is published and when it is withdrawn, by closing a channel each time. The
// prolog writes the ticket last, and the epilog removes it first.
func watchTicket(path string) (published, withdrawn <-chan struct{}) {
	came, went := make(chan struct{}), make(chan struct{})
	changes := watch(filepath.Dir(path))
	go func() {
		await(changes, func() bool { return exists(path) })
		close(came)
		await(changes, func() bool { return !exists(path) })
		close(went)
	}()
	return came, went
}

// waitForTicket waits for a ticket. It returns the events that the guard sends until then. ok is false if the guard has ended.
func waitForTicket(events <-chan usage.Event, published <-chan struct{}) (early []usage.Event, ok bool) {
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return nil, false
			}
			early = append(early, e)
		case <-published:
			return early, true
		}
	}
}

func await(changes func(), done func() bool) {
	for !done() {
		changes()
	}
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
	if _, err := unix.InotifyAddWatch(fd, folder, unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_ONLYDIR); err != nil {
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
