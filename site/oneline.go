// SPDX-License-Identifier: Apache-2.0

package site

import (
	"strconv"
	"strings"
)

// OneLine is an error in one line of printable text; joined errors are set apart by semicolons.
func OneLine(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) { // C1 controls, and what turns the direction of a line, are none either
			return '?'
		}
		return r
	}, text)
}
