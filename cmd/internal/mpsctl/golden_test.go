// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the goldens again")

// golden compares an output with the file that holds what it is to be.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
