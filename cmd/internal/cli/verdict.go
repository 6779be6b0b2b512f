// SPDX-License-Identifier: Apache-2.0

package cli

import "errors"

// Failed is a program's own failure: it was used well, and could not do it. What is no Failed is a mistake of usage where
// a program has both.
type Failed struct{ Err error }

func (f Failed) Error() string { return f.Err.Error() }

func (f Failed) Unwrap() error { return f.Err }

// ErrFound ends a program that looked for something wrong and has said what it found: nothing more is to be said.
var ErrFound = errors.New("found")

// Found is the exit code of ErrFound and of Failed.
const Found = 1
