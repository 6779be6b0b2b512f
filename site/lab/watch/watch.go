// SPDX-License-Identifier: Apache-2.0

// Package watch is for programs that run beside their caller: what they have printed so far, how often they have lost
// their processor, and waits for what they do.
package watch

import (
	"bytes"
	"context"
	"regexp"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site/wait"
)

// Output is what a program has printed. It is the program's stdout and stderr, and can be read while it runs.
type Output struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

// Write adds to the text.
func (o *Output) Write(text []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.Write(text)
}

// Text returns the text so far.
func (o *Output) Text() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.String()
}

// Closed reports whether a channel is closed, such as that of a program's end.
func Closed(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

// Until polls until done is true, for the given time, and returns whether it is.
func Until(ctx context.Context, limit time.Duration, done func() bool) bool {
	const look = 2 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !done() {
		if !wait.Sleep(ctx, look) {
			return done()
		}
	}
	return true
}

var switchLine = regexp.MustCompile(`(?m)^(non)?voluntary_ctxt_switches:\s+(\d+)$`)
