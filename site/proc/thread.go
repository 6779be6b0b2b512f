// SPDX-License-Identifier: Apache-2.0

package proc

import "strconv"

// A process lives while any of its threads lives. The kernel shows what a process has by its first thread: if that one
// has ended, /proc/PID shows a zombie without files, memory, program and namespaces, and in version 1 of the control
// groups without a group (seen on Linux 6.18). All of this is in /proc/PID/task/THREAD of a thread that lives. So a
// process is read by its first living thread.
//
// The threads of a process share all that is read here, unless a thread has taken a file table of its own
// (unshare(2) with CLONE_FILES). Such files are not looked for: a program may have a thousand threads.

// maxEnded limits the search for a living thread. Threads but the first leave the list when they end, unless a debugger
// keeps them.
const maxEnded = 64

// Thread returns the first living thread of a process, which has the number of the process as long as its first thread
// lives. A process that has ended has none: 0.
func Thread(pid int) int {
	status, err := readStatus(folder(pid))
	if err != nil || dead(status.State, status.Threads) {
		return 0
	}
	if !ended(status.State) {
		return pid
	}
	found, tried := 0, 0
	_ = EachThread(pid, func(thread int) bool {
		if status, err := ReadThread(pid, thread); err == nil && !ended(status.State) {
			found = thread
		}
		tried++
		return found == 0 && tried < maxEnded
	})
	return found
}

func ended(state byte) bool { return state == 'Z' || state == 'X' }

// Folder returns the folder in /proc that shows what a process has: /proc/PID, or that of its first living thread.
func Folder(pid int) string {
	if thread := Thread(pid); thread != 0 && thread != pid {
		return threadFolder(pid, thread)
	}
	return folder(pid)
}

func threadFolder(pid, thread int) string { return folder(pid) + "/task/" + strconv.Itoa(thread) }
