// SPDX-License-Identifier: Apache-2.0

// Package wait bounds what may take long: a call, a pause, and several calls side by side.
package wait

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Within runs a call that cannot be cancelled, and returns its result. If ctx ends first, Within returns ctx's cause and
// does not wait longer. The call then goes on in the background.
func Within[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	ended := make(chan result, 1)
	go func() {
		value, err := call()
		ended <- result{value, err}
	}()
	select {
	case r := <-ended:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// AtMostThird returns d, or a third of ctx's remaining time if that is less. So the caller has time to find out why a
// step failed, and to do the next one.
func AtMostThird(ctx context.Context, d time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return d
	}
	return min(d, time.Until(deadline)/3)
}

// Sleep waits for d, or until ctx ends. It reports whether ctx has not ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// Each runs act for 0 to n-1 side by side, and joins the errors.
func Each(n int, act func(int) error) error {
	results := make(chan error, n)
	for i := range n {
		go func() { results <- act(i) }()
	}
	var failed error
	for range n {
		failed = errors.Join(failed, <-results)
	}
	return failed
}

// Readable waits until a descriptor can be read. The error wraps os.ErrDeadlineExceeded if that takes longer than limit.
func Readable(fd int, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, Milliseconds(time.Until(end)))
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case !time.Now().Before(end):
			return os.ErrDeadlineExceeded
		}
	}
}

// Milliseconds rounds up, so that no wait ends too early.
func Milliseconds(d time.Duration) int {
	return int(max(0, (d+time.Millisecond-1)/time.Millisecond))
}
