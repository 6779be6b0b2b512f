// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"os"
	"runtime"
	"testing"
)

// A guard reads the status of each process of the node every ten seconds. Garbage wakes the threads that collect it.
func TestAStatusLeavesLittleGarbage(t *testing.T) {
	const reads, limit = 200, 1024 // bytes for one; 368 on amd64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range reads {
		if _, err := ReadStatus(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / reads; each > limit {
		t.Errorf("a status allocates %d bytes, at most %d are allowed", each, limit)
	}
}
