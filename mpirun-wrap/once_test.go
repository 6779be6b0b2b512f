// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// One of 49 processes prints, and the others return after it. A message with another name is printed too.
func TestPrintOnce(t *testing.T) {
	t.Parallel()
	var printed, early atomic.Int32
	var all sync.WaitGroup
	for rank := range 50 {
		all.Go(func() {
			name := fmt.Sprintf("%s %d %v", t.Name(), os.Getpid(), rank == 49)
			printOnce(name, func() { printed.Add(1) })
			if printed.Load() == 0 {
				early.Add(1)
			}
		})
	}
	all.Wait()
	if printed.Load() != 2 || early.Load() != 0 {
		t.Errorf("%d printed, %d returned before", printed.Load(), early.Load())
	}
}

// After a second, a message with the same name is printed again. The test is not parallel, because parallel tests
// would fork processes that hold the socket until their exec.
func TestPrintOnceAgain(t *testing.T) {
	for range 2 {
		printed := false
		printOnce(fmt.Sprintf("%s %d", t.Name(), os.Getpid()), func() { printed = true })
		if !printed {
			t.Error("not printed")
		}
	}
}
