// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	ten := "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"
	for _, c := range []struct{ name, want, got, diff string }{
		{"equal", ten, ten, ""},
		{"a line", ten, strings.Replace(ten, "6", "six", 1), "line 3:\n  3\n  4\n  5\n- 6\n+ six\n  7\n  8\n  9\n"},
		{"a line more", ten, "0\n" + ten, "line 1:\n+ 0\n  1\n  2\n  3\n"},
		{"a line less", ten, ten[2:], "line 1:\n- 1\n  2\n  3\n  4\n"},
		{"both ends", ten, "one" + ten[1:] + "11\n", "line 1:\n- 1\n+ one\n  2\n  3\n  4\nline 8:\n  8\n  9\n  10\n+ 11\n"},
		{"an end", "1\n2\n", "1\n2", "line 1:\n  1\n- 2\n+ 2\n  (without a newline at the end)\n"},
		{"nothing", "", "1\n", "line 1:\n+ 1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := Diff(c.want, c.got); diff != c.diff {
				t.Errorf("got\n%swant\n%s", diff, c.diff)
			}
		})
	}
	if diff := Diff("", strings.Repeat("x\n", 1000)); strings.Count(diff, "\n") != maxLines+2 || !strings.HasSuffix(diff, "and more\n") {
		t.Errorf("a difference of a thousand lines is printed in %d lines", strings.Count(diff, "\n"))
	}
}

// recorder is a test whose failures are only recorded.
type recorder struct {
	testing.TB
	printed string
}

func (r *recorder) Errorf(form string, args ...any) { r.printed += fmt.Sprintf(form, args...) }
func (r *recorder) Fatalf(form string, args ...any) { r.printed += fmt.Sprintf(form, args...) }
func (r *recorder) Helper()                         {}

func TestCompare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &recorder{TB: t}
	if Compare(r, path, "a\n"); r.printed != "" {
		t.Errorf("equal texts differ: %s", r.printed)
	}
	Compare(r, path, "b\n")
	want := path + " (-) differs from the result (+):\nline 1:\n- a\n+ b\n" +
		"to write it again: go test ./site/sim/golden -run '^TestCompare$' -update"
	if r.printed != want {
		t.Errorf("got\n%s\nwant\n%s", r.printed, want)
	}
}
