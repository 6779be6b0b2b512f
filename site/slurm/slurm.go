// SPDX-License-Identifier: Apache-2.0

// Package slurm reads Slurm's and the launchers' data about a job, a rank and a node's GPUs, and returns typed and
// checked values.
//
// It reads no environment and no fixed path: an environment is passed as a value, a file as a path. A user's mistake
// is never an error of ReadJob, because a user's text is returned unchanged. It never guesses: if Slurm's data do not
// determine a GPU, the result is an error with the reason.
package slurm

import (
	"maps"
	"strings"
)

// Env is a process's environment, name to value.
type Env map[string]string

// NewEnv reads lines as ParseEnv does. It drops each variable without a row in the table of variables: a program that
// reads a variable has to name its witness.
func NewEnv(lines []string) Env {
	env := ParseEnv(lines)
	maps.DeleteFunc(env, func(name, _ string) bool {
		_, known := witnessOf(name)
		return !known
	})
	return env
}

// ParseEnv reads lines of the form NAME=value, as os.Environ returns them. If a name occurs twice, the first counts, as
// in getenv(3). It skips a line without "=".
func ParseEnv(lines []string) Env {
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

// Context is the value of SLURM_SCRIPT_CONTEXT, which names the kind of script that Slurm runs.
type Context string

// The two contexts in which slurmd runs a script as root, once for a job and a node.
const (
	Prolog Context = "prolog_slurmd"
	Epilog Context = "epilog_slurmd"
)

// Slurm reserves the two highest numbers for "none" and "infinite" (NO_VAL and INFINITE in slurm.h).
const noVal = 0xfffffffe
