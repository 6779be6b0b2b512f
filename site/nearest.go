// SPDX-License-Identifier: Apache-2.0

package site

import "strings"

// Nearest returns the known name that differs from name by at most two letters and at most half of them, where two
// swapped letters count as one. It also returns a known name with which name begins, or one that begins with name, and ""
// if there is none.
func Nearest(name string, known []string) (like string) {
	const begins = 2
	smallest := 3
	for _, k := range known {
		d := distance(name, k)
		switch {
		case len(k) > 1 && strings.HasPrefix(name, k), len(name) > 2 && strings.HasPrefix(k, name):
			d = min(d, begins)
		case 2*d > len(k):
			continue
		}
		if d < smallest {
			like, smallest = k, d
		}
	}
	return like
}

// Suggest returns the advice for an unknown flag or variable: the known name that is like it, with a prefix such as "--",
// or else the help of the program.
func Suggest(prefix, name string, known []string, program string) string {
	if like := Nearest(name, known); like != "" {
		return "did you mean " + prefix + like + "?"
	}
	return "see " + program + " --help"
}

// distance returns how many letters must be inserted, deleted or replaced, or swapped with the next one, to make b from
// a.
func distance(a, b string) int {
	before, last, row := []int{}, make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, make([]int, len(b)+1)
	}
	return last[len(b)]
}
