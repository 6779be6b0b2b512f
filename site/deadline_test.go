// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
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
