// SPDX-License-Identifier: Apache-2.0

// Package nofile gives a Go program the limit of open files that it was started with. The Go runtime raises the soft
// limit when it starts and hides the old one; the programs that are simulated here keep theirs, and what they do with
// few descriptors was measured.
package nofile

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Restore puts the soft limit back and returns it. A child still gets the old limit, so a child can tell it.
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
