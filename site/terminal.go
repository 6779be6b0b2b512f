// SPDX-License-Identifier: Apache-2.0

package site

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream io.Writer) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
