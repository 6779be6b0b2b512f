// SPDX-License-Identifier: Apache-2.0

// Package record writes the logs of the MPS programs in the form of driver 580:
//
//	[2026-11-21 05:23:01.754 Control   546] Starting control daemon using socket /tmp/m1/p/control
package record

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Log is the log of one process. Each line is written with one write, because two processes may share the file.
type Log struct {
	To  io.Writer
	PID int
}

// Line writes one line under a role: Control, Server, Other or Client.
func (l Log) Line(role, format string, values ...any) { l.As(l.PID, role, format, values...) }

// As writes one line under the pid of another process, as the server does for its clients.
func (l Log) As(pid int, role, format string, values ...any) {
	now := time.Now().Format("2006-01-02 15:04:05.000")
	for _, line := range strings.Split(fmt.Sprintf(format, values...), "\n") {
		fmt.Fprintf(l.To, "[%s %s %5d] %s\n", now, role, pid, line)
	}
}
