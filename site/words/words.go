// SPDX-License-Identifier: Apache-2.0

// Package words makes text for people: counts, quotes, one line of printable characters, and the name that was meant.
package words

import (
	"fmt"
	"strconv"
	"strings"
)

// Count returns a number with its noun: "1 client", "2 clients", "3 processes".
func Count(n int, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "s"):
		noun += "es"
	default:
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// OneLine returns an error as one line of printable text. Joined errors are separated by semicolons.
func OneLine(err error) string {
	return Printable(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// Printable returns a text with "?" for each character that is not printable, because a terminal may obey it.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) { // C1 controls and marks that change the direction of a line are not printable either
			return '?'
		}
		return r
	}, text)
}

// Quote returns a text in Go's quotes, cut after max bytes. So the result has no bytes that would break a log line.
func Quote(text string, max int) string {
	if len(text) > max {
		return strconv.Quote(text[:max]) + "…"
	}
	return strconv.Quote(text)
}

// plain has the characters that a shell takes as they are.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"

// Shell returns words as a shell reads them, with quotes if they need some.
func Shell(words ...string) string {
	line := make([]string, len(words))
	for i, word := range words {
		if line[i] = word; word == "" || strings.Trim(word, plain) != "" {
			line[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(line, " ")
}

// Step is Shell for a step of a repair. It is one line that a terminal can print, without "; " and ": ", which end a
// step and the remark before it.
func Step(words ...string) string {
	line := make([]string, len(words))
	for i, word := range words {
		if line[i] = Shell(word); Printable(word) != word || strings.Contains(word, "; ") || strings.Contains(word, ": ") {
			octal := ""
			for _, b := range []byte(word) {
				octal += fmt.Sprintf(`\%03o`, b)
			}
			line[i] = "$'" + octal + "'"
		}
	}
	return strings.Join(line, " ")
}

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
