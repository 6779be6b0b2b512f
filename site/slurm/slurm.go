// SPDX-License-Identifier: Apache-2.0

// Package slurm reads what Slurm and the launchers say about a job, a rank and a node's GPUs, and turns it into typed
// and checked values. It promises three things. Nothing ambient is read: an environment comes in as a value, a file as
// a path. A user's mistake is never an error of ReadJob: what a user can write arrives as the string that it is. And
// nothing is guessed: where Slurm's words leave open which GPU is meant, the answer is an error that says why.
package slurm

import "strings"

// Env is a process's environment, name to value.
type Env map[string]string

// NewEnv reads lines of the form NAME=value, as os.Environ gives them. Where a name stands twice the first counts,
// as in getenv(3); a line without "=" is left out.
func NewEnv(lines []string) Env {
	env := make(Env, len(lines))
	for _, line := range lines {
		name, value, ok := strings.Cut(line, "=")
		if !ok || name == "" {
			continue
		}
		if _, seen := env[name]; !seen {
			env[name] = value
		}
	}
	return env
}

// Context is the part that Slurm lets a script play, the value of SLURM_SCRIPT_CONTEXT.
type Context string

// The two contexts in which slurmd runs a script as root, once for a job and a node.
const (
	Prolog Context = "prolog_slurmd"
	Epilog Context = "epilog_slurmd"
)

// Slurm keeps the two highest numbers for "none" and "infinite" (NO_VAL and INFINITE in slurm.h).
const noVal = 0xfffffffe
