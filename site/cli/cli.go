// SPDX-License-Identifier: Apache-2.0

// Package cli has the parts that all programs share: their process as a value, exit codes, and messages for people. It
// links only packages that the wrapper may link.
package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/words"
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
	fmt.Fprintf(p.Err, "%s: %s\n", program, words.OneLine(err))
}

// unknown is the commit of a build that was told none.
const unknown = "unknown"

// commit is set by the linker: make build.
var commit = unknown

// Version returns "slurm-mps COMMIT (GO)".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: "go"}
	}
	return fmt.Sprintf("slurm-mps %s (%s)", commitOf(commit, info), info.GoVersion)
}

// commitDigits is the length of an abbreviated commit, as in the versions of Go modules.
const commitDigits = 12

// commitOf returns the commit that the linker was told. Without one, it returns Go's stamp: the commit of a
// build in a clone, or the version of a module that go install has fetched.
func commitOf(linked string, info *debug.BuildInfo) string {
	if linked != unknown {
		return linked
	}
	stamps := map[string]string{}
	for _, s := range info.Settings {
		stamps[s.Key] = s.Value
	}
	version := info.Main.Version
	if revision := stamps["vcs.revision"]; revision != "" {
		version = revision[:min(len(revision), commitDigits)]
		if stamps["vcs.modified"] == "true" {
			version += "-dirty"
		}
	}
	if version == "" || version == "(devel)" {
		return unknown
	}
	return version
}

// RuntimeError is a failure of a program that was called correctly. If a program has both kinds, any other error is a
// mistake in the call.
type RuntimeError struct{ Err error }

func (f RuntimeError) Error() string { return f.Err.Error() }

func (f RuntimeError) Unwrap() error { return f.Err }

// ErrFindings ends a program that has found something wrong and has printed it. Nothing more is printed.
var ErrFindings = errors.New("found")

// ExitFindings is the exit code of ErrFindings and of RuntimeError.
const ExitFindings = 1

// HelpColumns is the width of help texts and man pages.
const HelpColumns = 80

// Wrap breaks text into lines with an indentation and at most this number of columns. A word that is longer is not
// broken.
func Wrap(indent, text string, columns int) string {
	var b strings.Builder
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line) > len(indent) && len([]rune(line))+1+len([]rune(word)) > columns {
			b.WriteString(line + "\n")
			line = indent
		}
		if len(line) > len(indent) {
			line += " "
		}
		line += word
	}
	b.WriteString(line + "\n")
	return b.String()
}

// WriteJSON writes a value in one line, for programs. It does not escape characters for HTML, because a finding holds
// commands, and a reader copies "&&" from them.
func WriteJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
