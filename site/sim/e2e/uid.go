// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// Tests of several packages, and of several checkouts, run at the same time and see one another's processes. Those of
// other users are none of theirs, so each process of tests has a block of users for itself.
const (
	firstUID, uidsOfABlock, uidBlocks = 2101, 64, 64
)

// UID and GID are the user of the jobs in these tests. The next numbers are this process's too. The name and the number
// need not exist on the machine; UserName is the account's name where it must.
var (
	UID      = takeUIDs()
	GID      = UID
	UserName = fmt.Sprint("mps", UID)
)

// UsersStatus are lines of /proc/PID/status of a process that is the user's, and has no other group.
var UsersStatus = []string{fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", UID), fmt.Sprintf("Gid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", GID),
	fmt.Sprintf("Groups:\t%d \n", GID)}

// uidLock holds the block until the process ends.
var uidLock *os.File

// takeUIDs takes a block that no other process of tests has. Only root's tests use it.
func takeUIDs() uint32 {
	if os.Geteuid() != 0 {
		return firstUID
	}
	folder := filepath.Join(os.TempDir(), "slurm-mps-test-uids")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		panic(err)
	}
	for block := range uidBlocks {
		first := uint32(firstUID + block*uidsOfABlock)
		file, err := os.Create(filepath.Join(folder, strconv.Itoa(int(first))))
		if err != nil {
			panic(err)
		}
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && !uidsLive(first) {
			uidLock = file
			return first
		}
		file.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			panic(err)
		}
	}
	panic(fmt.Sprintf("cannot take users for the tests: all %d blocks have processes", uidBlocks))
}

// uidsLive reports whether a process of a block's users runs, which a killed run has left.
func uidsLive(first uint32) bool {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		pid, _ := strconv.Atoi(filepath.Base(folder))
		if uids, err := proc.UIDs(pid); err == nil && uids[0] >= first && uids[0] < first+uidsOfABlock {
			return true
		}
	}
	return false
}
