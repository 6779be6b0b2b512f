// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"regexp"
	"testing"
)

// keyValue reads the same from a text as Slurm's own pattern.
func FuzzKeyValue(f *testing.F) {
	for _, seed := range []string{"A=b", ` a.b_1 += "x y" c=d`, `A="x"y z`, `A="x`, "A= \t=b", "A=", "=b", "A-=b",
		"A -+=b", `A=""`, "é=1", "A=\xff\v\x00 b", "NodeName", "A\v=b", `A="b"` + "\vc"} {
		f.Add(seed)
	}
	pattern := regexp.MustCompile(`^\s*([[:alnum:]_.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?:\s|$)`)
	f.Fuzz(func(t *testing.T, text string) {
		got, rest, ok := keyValue(text)
		m := pattern.FindStringSubmatchIndex(text)
		if ok != (m != nil) {
			t.Fatalf("%q: %v, and the pattern gives %v", text, ok, m)
		}
		if !ok {
			return
		}
		from, to, after := m[6], m[7], m[7]
		if m[4] >= 0 {
			from, to, after = m[4], m[5], m[5]+1
		}
		if want := (pair{text[m[2]:m[3]], text[from:to]}); got != want || rest != text[after:] {
			t.Errorf("%q: %q and %q, want %q and %q", text, got, rest, want, text[after:])
		}
	})
}
