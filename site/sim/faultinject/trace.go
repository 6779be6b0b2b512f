// SPDX-License-Identifier: Apache-2.0

// Package faultinject runs a program and stops it at everything that it does to the world outside of itself, so that
// a test can kill it there or make that fail. What a program does is found by watching its system calls (ptrace), not
// by a list of what it is thought to do: calls are effects unless they are known to be harmless, so a new effect is
// covered by itself.
//
// The promise: a program that is not touched does what it does untraced; a program that is killed dies right after
// the effect, with all its threads and before its next; its children are watched until they have become another
// program, and live on.
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
	What  string // what it is done to, paths in full: "/run/x/.7.new /run/x/7"
	Child bool   // it is a child's
	// Asks marks a call that leaves nothing behind when its process dies: it is listed since it can fail. Examples: a
	// file opened for reading, fsync, a limit of one's own.
	Asks bool
}

// String is "renameat /run/x/.7.new /run/x/7".
func (e Effect) String() string {
	call := e.Call
	if e.Child {
		call = "child's " + call
	}
	return strings.TrimSpace(call + " " + e.What)
}

// Plan says what becomes of a program. Its functions are called one at a time; nil ones do nothing.
type Plan struct {
	// Fail is asked before an effect: an error number other than 0 is what the program gets instead of it.
	Fail func(Effect) syscall.Errno
	// Once is for a program that is left alone when something has failed: it runs at its own speed from there on.
	Once bool
	// Kill is asked when an effect has succeeded: true kills the program before it does anything else.
	Kill func(Effect) bool
	// Killed is called when the program has been killed. A child that was made by the last effect waits for its end.
	Killed func()
}

// Result is how a program ended.
type Result struct {
	Code   int // exit code, -1 where it was killed
	Signal syscall.Signal
	Output string // stdout and stderr
}

// Run runs a program to its end, with /dev/null as its stdin and / as its folder. The context's end kills it.
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
	said, err := os.ReadFile(out.Name())
	return Result{Code: status.ExitStatus(), Signal: status.Signal(), Output: string(said)}, errors.Join(err, ctx.Err())
}
