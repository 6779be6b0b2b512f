// SPDX-License-Identifier: Apache-2.0

// Package nofile restores the limit of open files that a Go program was started with. The Go runtime raises the soft
// limit at the start and hides the old value. The real MPS programs keep the limit that they get, and their behaviour
// with few descriptors was measured.
package nofile

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Restore sets the soft limit back to the old value and returns it. It gets the value from a child process, because a
// child still gets the old limit.
func Restore() (soft uint64, err error) {
	text, err := exec.Command("/bin/sh", "-c", "ulimit -S -n").Output()
	if err != nil {
		return 0, fmt.Errorf("cannot ask for limit of open files: %w", err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("cannot read limit of open files: %w", err)
	}
	soft, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return limit.Cur, nil // "unlimited"
	}
	limit.Cur = soft
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("cannot restore limit of open files: %w", err)
	}
	return soft, nil
}
