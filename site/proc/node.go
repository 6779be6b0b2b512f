// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"strings"
)

// BootID returns the kernel's identifier of this boot.
func BootID() (string, error) {
	content, err := ReadFile("/proc/sys/kernel/random/boot_id", 64)
	if err != nil {
		return "", fmt.Errorf("cannot read boot id: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// NodeMemory returns the node's memory and its used part, in bytes.
func NodeMemory() (total, used uint64, ok bool) {
	content, err := ReadFile("/proc/meminfo", 16<<10)
	if err != nil {
		return 0, 0, false
	}
	values := Numbers(content)
	total, left := values["MemTotal"]<<10, values["MemAvailable"]<<10
	return total, total - min(total, left), total > 0 && left > 0
}
