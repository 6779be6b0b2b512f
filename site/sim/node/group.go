// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os/exec"
	"syscall"
)

// SignalGroup sends a signal to the process group that cmd leads. After cmd was waited for, it returns an error and sends
// nothing, because its number may be another group's by then.
func SignalGroup(cmd *exec.Cmd, signal syscall.Signal) error {
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		return err
	}
	return syscall.Kill(-cmd.Process.Pid, signal)
}
