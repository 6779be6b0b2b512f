// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"time"
)

// AtMostThird returns d, or a third of ctx's remaining time if that is less. So the caller has time to find out why a
// step failed, and to do the next one.
func AtMostThird(ctx context.Context, d time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return d
	}
	return min(d, time.Until(deadline)/3)
}
