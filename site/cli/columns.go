// SPDX-License-Identifier: Apache-2.0

package cli

import "strings"

// HelpColumns is the width of help texts and man pages.
const HelpColumns = 80

// Wrap breaks text into lines with an indentation and at most this number of columns. A word that is longer is not
// broken.
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
