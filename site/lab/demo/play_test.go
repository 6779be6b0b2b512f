// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

// terminalRows is the height of a small terminal. One row is for the prompt.
const terminalRows = 24

// TestTheTextsFit checks that the welcome, and the card alone, each fit a terminal of 80 columns and 24 rows.
func TestTheTextsFit(t *testing.T) {
	var shown bytes.Buffer
	screen{out: &shown}.text(welcome("/tmp/mps-1234567-1234567890/bin/admin", "nano, vim, emacs"))
	for name, text := range map[string]string{"welcome": shown.String(), "card": cardText()} {
		if rows := strings.Count(text, "\n"); rows == 0 || rows >= terminalRows {
			t.Errorf("the %s has %d rows, want less than %d:\n%s", name, rows, terminalRows, text)
		}
		for line := range strings.Lines(text) {
			if n := cells(strings.TrimRight(line, "\n")); n > columns {
				t.Errorf("the %s has a line of %d columns: %s", name, n, line)
			}
		}
	}
	if !strings.Contains(shown.String(), card[0].line) || !strings.Contains(shown.String(), "no gain in speed") {
		t.Errorf("the welcome lacks the first thing to try, or that there is no gain in speed:\n%s", shown.String())
	}
}
