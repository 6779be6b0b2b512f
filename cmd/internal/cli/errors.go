// SPDX-License-Identifier: Apache-2.0

package cli

import "errors"

// RuntimeError is a program's own failure: it was used well, and could not do it. What is no RuntimeError is a mistake of usage where
// a program has both.
type RuntimeError struct{ Err error }

func (f RuntimeError) Error() string { return f.Err.Error() }

func (f RuntimeError) Unwrap() error { return f.Err }

// ErrFindings ends a program that looked for something wrong and has said what it found: nothing more is to be said.
var ErrFindings = errors.New("found")

// ExitFindings is the exit code of ErrFindings and of RuntimeError.
const ExitFindings = 1
