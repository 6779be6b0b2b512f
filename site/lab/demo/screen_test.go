// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestLinesAreBrokenAtBlanks(t *testing.T) {
	word := strings.Repeat("x", 30)
	for _, c := range []struct{ line, indent, want string }{
		{"short", "    ", "short\n"},
		{word + " " + word + " " + word, "  ", word + " " + word + "\n  " + word + "\n"},
		{strings.Repeat("x", 90), "", strings.Repeat("x", 90) + "\n"},
		{strings.Repeat("█", 80), "", strings.Repeat("█", 80) + "\n"},
		{strings.Repeat("x", 80) + " y", "", strings.Repeat("x", 80) + "\ny\n"},
	} {
		if got := wrap(c.line, c.indent); got != c.want {
			t.Errorf("%q becomes %q, want %q", c.line, got, c.want)
		}
	}
}

func TestUUIDsAreShort(t *testing.T) {
	got := shortUUIDs("GPU-923379c7-6203-a2ce-ee8a-c7104a58d469, GPU-c38401c5")
	if want := "GPU-923379c7, GPU-c38401c5"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A file is not a terminal, so no text on it is bold.
func TestTextWithoutColour(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := newScreen(file, func(string) string { return "" })
	var out bytes.Buffer
	s.out = &out
	s.title("Title")
	s.command("root", "true")
	if text := out.String(); strings.Contains(text, "\x1b") || !strings.Contains(text, "\nTitle\n\nroot# true\n") {
		t.Errorf("%q", text)
	}
}

func TestAllTextFitsTheScreen(t *testing.T) {
	for _, a := range acts {
		if a.title == "" || !strings.HasPrefix(a.before, "You see") && !strings.Contains(a.before, "You see ") || !strings.HasPrefix(a.after, "It means: ") {
			t.Errorf("%q: before must name what you see, and after must explain it", a.title)
		}
	}
	for line := range strings.Lines(cardText() + next) {
		if n := cells(strings.TrimRight(line, "\n")); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
