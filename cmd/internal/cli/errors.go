// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"

	"github.com/slurm-mps/slurm-mps/site"
)

// RuntimeError is a failure of a program that was called correctly. If a program has both kinds, any other error is a
// mistake in the call.
type RuntimeError struct{ Err error }

func (f RuntimeError) Error() string { return f.Err.Error() }

func (f RuntimeError) Unwrap() error { return f.Err }

// ErrFindings ends a program that has found something wrong and has printed it. Nothing more is printed.
var ErrFindings = errors.New("found")

// ExitFindings is the exit code of ErrFindings and of RuntimeError.
const ExitFindings = 1

// Suggest returns the advice for an unknown flag or variable: the known name that is like it, with a prefix such as "--",
// or else the help of the program.
func Suggest(prefix, name string, known []string, program string) string {
	if like := site.Nearest(name, known); like != "" {
		return "did you mean " + prefix + like + "?"
	}
	return "see " + program + " --help"
}
