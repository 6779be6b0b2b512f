// SPDX-License-Identifier: Apache-2.0

package site

import (
	"strconv"
	"strings"
)

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
