// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"
)

// TestEveryFaultCanBePlanted fails if a fault's text is no longer in the source. Without the fault, no one knows
// whether a test checks the promise.
func TestEveryFaultCanBePlanted(t *testing.T) {
	for _, f := range faults {
		if _, err := f.planted(filepath.Join("..", "..", "..")); err != nil {
			t.Error(err)
		}
	}
}
