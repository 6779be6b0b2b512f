// SPDX-License-Identifier: Apache-2.0

package cli

import "errors"

// RuntimeError is a program's own failure: it was used well, and could not do it. What is no RuntimeError is a
// mistake of usage where a program has both.
type RuntimeError struct{ Err error }

func (f RuntimeError) Error() string { return f.Err.Error() }

func (f RuntimeError) Unwrap() error { return f.Err }

// ErrFindings ends a program that looked for something wrong and has said what it found: nothing more is to be said.
var ErrFindings = errors.New("found")

// ExitFindings is the exit code of ErrFindings and of RuntimeError.
const ExitFindings = 1

// SuggestFlag ends a complaint of an unknown flag: it names the known flag that is at most two slips away, or else the
// help of the program.
func SuggestFlag(name string, known []string, program string) string {
	do, least := "see "+program+" --help", 3
	for _, k := range known {
		if d := distance(name, k); d < min(least, len(k)) {
			do, least = "did you mean --"+k+"?", d
		}
	}
	return do
}

// distance is the number of letters to insert, delete or replace that make b of a.
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
