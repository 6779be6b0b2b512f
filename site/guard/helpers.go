// SPDX-License-Identifier: Apache-2.0

package guard

import "time"

// background runs a function that may take long in another goroutine. The function that it returns notes the result,
// in the guard's goroutine.
func (g *Guard) background(find func() (note func(now time.Time))) {
	go func() {
		g.results <- find()
		g.events.nudge()
	}()
}

// noteResults notes the results of other goroutines.
func (g *Guard) noteResults(now time.Time) {
	for len(g.results) > 0 {
		(<-g.results)(now)
		g.budget.busy = true
	}
}

// awaitResults notes results until a condition holds. It reports whether it holds in time.
func (g *Guard) awaitResults(limit time.Duration, holds func() bool) bool {
	deadline := time.After(limit)
	for !holds() {
		select {
		case note := <-g.results:
			note(time.Now())
		case <-deadline:
			return false
		}
	}
	return true
}

// saver saves the latest value in another goroutine. The guard waits for no disk, because it must hold a new client's
// files within 30 ms.
type saver[T any] struct {
	next  chan T        // the latest value that is not saved yet
	saved chan struct{} // closed when the last value is saved
}

func newSaver[T any](save func(T)) saver[T] {
	s := saver[T]{make(chan T, 1), make(chan struct{})}
	go func() {
		for value := range s.next {
			save(value)
		}
		close(s.saved)
	}()
	return s
}

// put saves a value, in place of an older one that is not saved yet.
func (s saver[T]) put(value T) {
	select {
	case <-s.next:
	default:
	}
	s.next <- value
}

// saveWait limits the wait for the last save at the end.
const saveWait = time.Second

// end waits until the last value is saved, saveWait at most.
func (s saver[T]) end() {
	close(s.next)
	select {
	case <-s.saved:
	case <-time.After(saveWait):
	}
}
