// SPDX-License-Identifier: Apache-2.0

package osfile

import (
	"io"
	"os"
	"testing"
)

// A terminal is a file that has a terminal's settings. Another character device has none.
func TestIsTerminal(t *testing.T) {
	for path, want := range map[string]bool{"/dev/ptmx": true, "/dev/null": false} {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := IsTerminal(file); got != want {
			t.Errorf("%s: %v", path, got)
		}
		file.Close()
	}
	if IsTerminal(io.Discard) {
		t.Error("a stream that is not a file is a terminal")
	}
}
