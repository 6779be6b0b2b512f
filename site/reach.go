// SPDX-License-Identifier: Apache-2.0

package site

import "golang.org/x/sys/unix"

// CanOpen reports whether this process may open a device file for reading and writing. access(2) fails if a control
// group denies the device. The call has no effect on the device.
func CanOpen(path string) bool { return unix.Access(path, unix.R_OK|unix.W_OK) == nil }
