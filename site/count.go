// SPDX-License-Identifier: Apache-2.0

package site

import (
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
