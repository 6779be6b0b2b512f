// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// A wait ends when its condition holds, and with its time; it looks once more then.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		after := func(d time.Duration) func() bool { return func() bool { return time.Since(began) >= d } }
		if !Until(t.Context(), time.Minute, after(time.Second)) || time.Since(began) > time.Second+10*time.Millisecond {
			t.Errorf("what holds after a second is seen after %v", time.Since(began))
		}
		if Until(t.Context(), time.Minute, after(time.Hour)) || time.Since(began) > 62*time.Second {
			t.Errorf("a wait of a minute ends after %v", time.Since(began))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if Until(ended, time.Minute, after(time.Hour)) || !Until(ended, time.Minute, after(0)) {
			t.Error("a wait without time does not look")
		}
	})
}

// An output can be read while a program writes it.
func TestOutput(t *testing.T) {
	var o Output
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 100 {
			_, _ = o.Write([]byte("x"))
		}
	}()
	for !Closed(ended) {
		_ = o.Text()
	}
	if got := len(o.Text()); got != 100 {
		t.Errorf("%d bytes of 100", got)
	}
}

// A process that sleeps has given up its processor, more often each time.
func TestSwitches(t *testing.T) {
	before, _ := Switches(os.Getpid())
	for range 5 {
		time.Sleep(2 * time.Millisecond)
	}
	if after, _ := Switches(os.Getpid()); before <= 0 || after <= before {
		t.Errorf("%d switches, and %d after five sleeps", before, after)
	}
	if given, lost := Switches(1 << 30); given != 0 || lost != 0 {
		t.Errorf("no process has %d and %d switches", given, lost)
	}
}
