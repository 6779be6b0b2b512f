// SPDX-License-Identifier: Apache-2.0

// Package cli is what all programs share: their process as a value, exit codes, and messages for people. It links
// only packages that the wrapper may link.
package cli

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/slurm-mps/slurm-mps/site"
)

// These are the exit codes. If a prolog or an epilog exits with a code other than 0, Slurm drains the node. If the
// wrapper itself fails, its code is the code that env(1), nohup(1) and timeout(1) use.
const (
	ExitOK            = 0
	ExitDrain         = 1
	ExitUsage         = 2
	ExitWrapperFailed = 125
)

// Process holds the arguments, the environment, the pid and the output streams of a program. No other code reads
// them.
type Process struct {
	Args []string // without the program's name
	Env  []string
	PID  int
	Out  io.Writer
	Err  io.Writer
}

// ThisProcess returns the process that runs.
func ThisProcess() Process {
	return Process{os.Args[1:], os.Environ(), os.Getpid(), os.Stdout, os.Stderr}
}

// PrintError writes one line to stderr for any error, because slurmd logs the line and a user may have written a part
// of it.
func (p Process) PrintError(program string, err error) {
	fmt.Fprintf(p.Err, "%s: %s\n", program, site.OneLine(err))
}

// commit is set by the linker: make build.
var commit = "unknown"

// Version returns "slurm-mps COMMIT (GO)".
func Version() string {
	goVersion := "go"
	if info, ok := debug.ReadBuildInfo(); ok {
		goVersion = info.GoVersion
	}
	return fmt.Sprintf("slurm-mps %s (%s)", commit, goVersion)
}
