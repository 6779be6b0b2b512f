// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// Process identifies a process, and Stat is the kernel's account of one. Package proc reads both.
type (
	Process = proc.Process
	Stat    = proc.Stat
)

// ReadStat is proc.ReadStat.
func ReadStat(pid int) (Stat, error) { return proc.ReadStat(pid) }

// CurrentProcess returns this process.
func CurrentProcess() (Process, error) { return proc.Current() }

// BootID returns the kernel's identifier of this boot.
func BootID() (string, error) {
	// os.File would cost each rank six system calls more.
	fd, err := unix.Open("/proc/sys/kernel/random/boot_id", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("cannot read boot id: %w", err)
	}
	defer unix.Close(fd)
	content, err := ReadOpen(fd, 64)
	if err != nil {
		return "", fmt.Errorf("cannot read boot id: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}
