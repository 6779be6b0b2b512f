// SPDX-License-Identifier: Apache-2.0

package words

import (
	"errors"
	"testing"
)

func TestPrintable(t *testing.T) {
	joined := errors.Join(errors.New("a\x1b[2J"), errors.New("b\u202ec\u0085é"))
	if got, want := OneLine(joined), "a?[2J; b?c?é"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for text, want := range map[string]string{"": `""`, "abc\n": `"abc\n"`, "abcde": `"abcd"…`} {
		if got := Quote(text, 4); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestShell(t *testing.T) {
	if got, want := Shell("chmod", "755", "/opt/a b", "it's", ""), `chmod 755 '/opt/a b' 'it'\''s' ''`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
