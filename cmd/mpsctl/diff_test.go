// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The difference of random texts is one by which patch makes the new text of the old one, if patch is here. Without it,
// the edits alone are tried.
func TestUnified(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	patch, noPatch := exec.LookPath("patch")
	for range 200 {
		var old, updated []string
		for n := range random.IntN(40) {
			switch line := fmt.Sprintf("line %d", n%7); random.IntN(6) {
			case 0:
				old = append(old, line)
			case 1:
				updated = append(updated, line)
			default:
				old, updated = append(old, line), append(updated, line)
			}
		}
		var a, b []string
		for _, e := range edits(old, updated) {
			if e[0] != '+' {
				a = append(a, e[1:])
			}
			if e[0] != '-' {
				b = append(b, e[1:])
			}
		}
		if strings.Join(a, "\n") != strings.Join(old, "\n") || strings.Join(b, "\n") != strings.Join(updated, "\n") {
			t.Fatalf("%q to %q", old, updated)
		}
		if noPatch != nil || len(old) == 0 || len(updated) == 0 {
			continue
		}
		file := filepath.Join(t.TempDir(), "file")
		text := strings.Join(old, "\n") + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		want := strings.Join(updated, "\n") + "\n"
		cmd := exec.Command(patch, "--fuzz=0", "-s", file)
		cmd.Stdin = strings.NewReader(unified("a", text, "b", want))
		out, err := cmd.CombinedOutput()
		if got, _ := os.ReadFile(file); text != want && (err != nil || string(got) != want) {
			t.Fatalf("patch makes %q of %q, want %q: %v, %s", got, text, want, err, out)
		}
	}
}

func TestUnifiedText(t *testing.T) {
	const want = "--- old\n+++ new\n@@ -2,4 +2,5 @@\n b\n c\n d\n-e\n+E?\n+f\n"
	if got := unified("old", "a\nb\nc\nd\ne\n", "new", "a\nb\nc\nd\nE\x1b\nf\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := unified("old", "a\n", "new", "a\n"); got != "" {
		t.Errorf("two equal texts differ: %s", got)
	}
	large := strings.Repeat("x\ny\n", 3000)
	if got := edits(lines("a\n"+large), lines(large+"b\n")); len(got) != 12002 {
		t.Errorf("%d edits", len(got))
	}
}
