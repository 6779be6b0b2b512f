// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"
)

// A fault whose text has moved is planted nowhere, and the promise that it was for is held by no one.
func TestEveryFaultCanBePlanted(t *testing.T) {
	for _, f := range faults {
		if _, err := f.planted(filepath.Join("..", "..", "..")); err != nil {
			t.Error(err)
		}
	}
}
