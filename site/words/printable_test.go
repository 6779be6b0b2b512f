// SPDX-License-Identifier: Apache-2.0

package words

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
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

// A step of a repair is one line, whatever a path has in it. A shell reads the same words.
func TestStep(t *testing.T) {
	usual := []string{"chmod", "755", "/opt/a b", "it's", ""}
	if Step(usual...) != Shell(usual...) {
		t.Errorf("%s, want %s", Step(usual...), Shell(usual...))
	}
	for _, odd := range []string{"a; b", "a: b", "a\nb", "\x1b[31mred", "\u202e; it's $(x) 1", "\xff"} {
		step := Step("printf", "%s|", odd, "x y")
		must.Hold(t, !strings.Contains(step, "; ") && !strings.Contains(step, ": ") && Printable(step) == step, "%q", step)
		if out, err := exec.Command("bash", "-c", step).Output(); err != nil || string(out) != odd+"|x y|" {
			t.Errorf("%s: %q, %v", step, out, err)
		}
	}
}
