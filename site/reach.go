// SPDX-License-Identifier: Apache-2.0

package site

import "golang.org/x/sys/unix"

// CanOpen reports whether this process may open a device file to read and write. A control group that denies a device
// denies it to access(2) as well, which has no effect on the device.
func CanOpen(path string) bool { return unix.Access(path, unix.R_OK|unix.W_OK) == nil }
