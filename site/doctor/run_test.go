// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A program that prints without end, or that never ends, costs neither memory nor time.
func TestRun(t *testing.T) {
	if printed, err := run(t.Context(), time.Minute, "/bin/sh", "-c", "echo out; echo err >&2"); err != nil || printed != "out\nerr\n" {
		t.Errorf("%q, %v", printed, err)
	}
	many, err := run(t.Context(), time.Minute, "/bin/sh", "-c", "head -c 3000000 /dev/zero")
	if err != nil || len(many) != maxPrinted {
		t.Errorf("%d bytes, %v", len(many), err)
	}
	began := time.Now()
	_, err = run(t.Context(), 50*time.Millisecond, "/bin/sleep", "600")
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
