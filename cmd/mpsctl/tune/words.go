// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"fmt"
	"strings"
)

// splitWords splits a command line as a shell does, without expansion: quotes keep blanks, and a backslash keeps the
// next character. Between double quotes, it keeps only a quote or a backslash. No shell runs the line, so operators
// of a shell are errors outside of quotes.
//
//	srun --export="A B" -n {ranks}   →   srun, --export=A B, -n, {ranks}
func splitWords(line string) (words []string, err error) {
	var word strings.Builder
	begun, quote := false, rune(0)
	runes := []rune(line)
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		escapes := r == '\\' && (quote == 0 || quote == '"' && i+1 < len(runes) && strings.ContainsRune(`"\`, runes[i+1]))
		switch {
		case escapes && i+1 == len(runes):
			return nil, fmt.Errorf(`cannot read --launcher %q: it ends in a backslash: write \\ or leave it out`, line)
		case escapes:
			i++
			begun = true
			word.WriteRune(runes[i])
		case r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			begun, quote = true, r
		case strings.ContainsRune(" \t\r\n", r):
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		case strings.ContainsRune("|&;<>", r):
			return nil, fmt.Errorf("cannot read --launcher %q: no shell runs it, so %c has no effect: "+
				"put it in quotes, or use sh -c '...'", line, r)
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("cannot read --launcher %q: a quote %c is open at its end: close it", line, quote)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}
