// SPDX-License-Identifier: Apache-2.0

package cli

import "errors"

// RuntimeError is a failure of a program that was called correctly. If a program has both kinds, any other error is a
// mistake in the call.
type RuntimeError struct{ Err error }

func (f RuntimeError) Error() string { return f.Err.Error() }

func (f RuntimeError) Unwrap() error { return f.Err }

// ErrFindings ends a program that has found something wrong and has printed it. Nothing more is printed.
var ErrFindings = errors.New("found")

// ExitFindings is the exit code of ErrFindings and of RuntimeError.
const ExitFindings = 1
