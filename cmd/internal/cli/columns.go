// SPDX-License-Identifier: Apache-2.0

package cli

import "strings"

// HelpColumns is the width of helps and man pages.
const HelpColumns = 80

// Wrap breaks text into lines of at most so many columns behind an indentation. A word that is longer stays whole.
func Wrap(indent, text string, columns int) string {
	var b strings.Builder
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line) > len(indent) && len([]rune(line))+1+len([]rune(word)) > columns {
			b.WriteString(line + "\n")
			line = indent
		}
		if len(line) > len(indent) {
			line += " "
		}
		line += word
	}
	b.WriteString(line + "\n")
	return b.String()
}
