// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os/exec"
	"syscall"
)

// SignalGroup sends a signal to the process group that cmd leads. It does nothing after cmd was waited for, because its number may be
// another group's by then. With 32,768 pids that happens within seconds: the end of a test with 3,000 processes killed
// each tenth group on the machine.
func SignalGroup(cmd *exec.Cmd, signal syscall.Signal) {
	if cmd.Process.Signal(syscall.Signal(0)) == nil { // it fails after the wait
		_ = syscall.Kill(-cmd.Process.Pid, signal)
	}
}
