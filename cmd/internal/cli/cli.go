// SPDX-License-Identifier: Apache-2.0

// Package cli is what all programs share: their process as a value, exit codes, and sentences for people. It
// links nothing that the wrapper may not link.
package cli

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/slurm-mps/slurm-mps/site"
)

// Exit codes. A prolog's or epilog's non-zero drains the node; the wrapper's own failures have the codes that env(1),
// nohup(1) and timeout(1) use.
const (
	ExitOK            = 0
	ExitDrain         = 1
	ExitUsage         = 2
	ExitWrapperFailed = 125
)

// Process is the surroundings of a program: nothing else reads them.
type Process struct {
	Args []string // without the program's name
	Env  []string
	PID  int
	Out  io.Writer
	Err  io.Writer
}

// ThisProcess is the one that runs.
func ThisProcess() Process {
	return Process{os.Args[1:], os.Environ(), os.Getpid(), os.Stdout, os.Stderr}
}

// PrintError writes one line to stderr, whatever the error holds: slurmd logs it, and a user may have had a hand in it.
func (p Process) PrintError(program string, err error) {
	fmt.Fprintf(p.Err, "%s: %s\n", program, site.OneLine(err))
}

// commit is set by the linker: make build.
var commit = "unknown"

// Version is "slurm-mps COMMIT (GO)".
func Version() string {
	goVersion := "go"
	if info, ok := debug.ReadBuildInfo(); ok {
		goVersion = info.GoVersion
	}
	return fmt.Sprintf("slurm-mps %s (%s)", commit, goVersion)
}
