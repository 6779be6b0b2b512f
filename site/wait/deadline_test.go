// SPDX-License-Identifier: Apache-2.0

package wait

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A step has at most a third of the time that is left, so that its caller can still do something else.
//
// Contract: T1
func TestAtMostThird(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ left, step, want time.Duration }{
			{0, time.Hour, time.Hour}, {60 * time.Second, 10 * time.Second, 10 * time.Second},
			{60 * time.Second, time.Hour, 20 * time.Second}, {3 * time.Second, 10 * time.Second, time.Second},
		} {
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if c.left > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.left)
			}
			if got := AtMostThird(ctx, c.step); got != c.want {
				t.Errorf("%v of %v: %v, want %v", c.step, c.left, got, c.want)
			}
			cancel()
		}
	})
}

// A call that ends in time gives its own result. One that hangs gives the cause of the deadline, and nothing waits.
func TestWithin(t *testing.T) {
	hangs := errors.New("it hangs")
	ctx, cancel := context.WithTimeoutCause(context.Background(), 50*time.Millisecond, hangs)
	defer cancel()
	failed := errors.New("it failed")
	if n, err := Within(ctx, func() (int, error) { return 7, failed }); n != 7 || err != failed {
		t.Errorf("%d, %v", n, err)
	}
	block := make(chan struct{})
	defer close(block)
	if n, err := Within(ctx, func() (int, error) { <-block; return 7, nil }); n != 0 || err != hangs {
		t.Errorf("a call that hangs: %d, %v", n, err)
	}
}
