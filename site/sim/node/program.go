// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"syscall"
)

// WriteProgram writes a file that is run immediately after. During the write no other goroutine starts a process. A
// new process would have the file open for writing until it executes its own program. Running a file that is open for
// writing fails with ETXTBSY.
func WriteProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, 0o755)
}
