// SPDX-License-Identifier: Apache-2.0

// Package faultinject runs a program and stops it at each effect that it has outside of itself. A test can kill the
// program there or make the effect fail. The package finds the effects by watching system calls (ptrace), not from a
// list of expected effects. A call is an effect unless it is known to be harmless, so new effects are found too.
//
// A program that is not killed or failed behaves as without tracing. A killed program dies right after the effect,
// with all its threads, before its next effect. Its children are traced until they execute another program; after
// that they continue when the program is killed.
package faultinject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Effect is one system call of the traced program, or of a child that has not yet become another program.
type Effect struct {
	Call  string // "renameat"
	What  string // the target, with full paths: "/run/x/.7.new /run/x/7"
	Child bool   // a child made the call
	// Asks marks a call that leaves nothing when its process dies. It is listed because it can fail. Examples are a
	// file opened for reading, fsync, or a limit of the process itself.
	Asks bool
}

// String returns a text such as "renameat /run/x/.7.new /run/x/7".
func (e Effect) String() string {
	call := e.Call
	if e.Child {
		call = "child's " + call
	}
	return strings.TrimSpace(call + " " + e.What)
}

// Plan decides about a program's effects. Its functions are called one at a time, and a nil function does nothing.
type Plan struct {
	// Fail is called before an effect. If it returns an error number other than 0, the call is skipped and the
	// program gets this error.
	Fail func(Effect) syscall.Errno
	// Once stops the tracing of calls after the first failure. The program then runs at its own speed.
	Once bool
	// Kill is called when an effect has succeeded. If it returns true, the program is killed before it does anything
	// else.
	Kill func(Effect) bool
	// Killed is called when the program has been killed. A child that the last effect made waits until Killed
	// returns.
	Killed func()
}

// Result is how a program ended.
type Result struct {
	Code   int // exit code, -1 if the program was killed
	Signal syscall.Signal
	Output string // stdout and stderr
}

// Run runs a program to its end, with /dev/null as its stdin and / as its folder. The program is killed when ctx
// ends.
func Run(ctx context.Context, argv, env []string, plan Plan) (Result, error) {
	out, err := os.CreateTemp("", "traced-")
	if err != nil {
		return Result{}, fmt.Errorf("cannot trace %s: %w", argv[0], err)
	}
	defer os.Remove(out.Name())
	defer out.Close()
	status, err := traced(ctx, argv, env, out, plan)
	if err != nil {
		return Result{}, fmt.Errorf("cannot trace %s: %w", argv[0], err)
	}
	output, err := os.ReadFile(out.Name())
	return Result{Code: status.ExitStatus(), Signal: status.Signal(), Output: string(output)}, errors.Join(err, ctx.Err())
}
