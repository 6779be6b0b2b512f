// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"strings"
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
	if like := nearest(name, known); like != "" {
		return "did you mean " + prefix + like + "?"
	}
	return "see " + program + " --help"
}

// nearest returns the known name that differs from name by at most two letters, or with which name begins. It returns
// "" if there is none.
func nearest(name string, known []string) (like string) {
	const begins = 2
	smallest := 3
	for _, k := range known {
		d := distance(name, k)
		if len(k) > 1 && strings.HasPrefix(name, k) {
			d = min(d, begins)
		}
		if d < min(smallest, len(k)) {
			like, smallest = k, d
		}
	}
	return like
}

// distance returns how many letters must be inserted, deleted or replaced to make b from a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
