// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"syscall"
)

// WriteProgram writes a file that is run at once. No other goroutine starts a process meanwhile: that process would
// have the file open for writing until it executes its own program, and to run a file that is open for writing is
// ETXTBSY.
func WriteProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, 0o755)
}
