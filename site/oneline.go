// SPDX-License-Identifier: Apache-2.0

package site

import (
	"strconv"
	"strings"
)

// OneLine returns an error as one line of printable text. Joined errors are separated by semicolons.
func OneLine(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) { // C1 controls and marks that change the direction of a line are not printable either
			return '?'
		}
		return r
	}, text)
}
