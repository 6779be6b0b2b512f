// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"io"
	"os"
	"sync"
	"time"
)

const (
	maxAtWork    = 8                     // readers that do not hang
	slowReadTime = 20 * time.Millisecond // after this time a reader counts as hanging and gives its slot to another
)

// readers holds the state of the running and the abandoned readers.
type readers struct {
	slots   chan struct{}
	max     int // including the abandoned readers
	open    func(path string) (io.ReadCloser, error)
	mutex   sync.Mutex
	running int
	left    map[Process]int // abandoned readers per process
}

func newReaders(max int) *readers {
	open := func(path string) (io.ReadCloser, error) { return os.Open(path) }
	return &readers{slots: make(chan struct{}, maxAtWork), max: max, left: map[Process]int{}, open: open}
}

type answer[T any] struct {
	index int // of the process
	value T
	err   error
}

// taker finds out something about one process.
type taker[T any] func(context.Context, Process) (T, error)

// each calls take for every process. Its answer for a process is ErrLate if take does not return in time.
func each[T any](ctx context.Context, r *readers, procs []Process, take taker[T]) []answer[T] {
	return eachUpTo(ctx, r, r.max, deadline, procs, take)
}

// eachUpTo is each with another limit of readers and another time.
func eachUpTo[T any](
	ctx context.Context, r *readers, limit int, wait time.Duration, procs []Process, take taker[T],
) []answer[T] {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	answers, asked := make([]answer[T], len(procs)), map[int]*reader{}
	answered := make(chan answer[T], len(procs))
	for i, p := range procs {
		answers[i].err = ErrLate
		one := r.begin(ctx, p, limit)
		if one == nil {
			continue
		}
		asked[i] = one
		go func() {
			a := answer[T]{index: i}
			a.value, a.err = take(ctx, p)
			r.end(one)
			answered <- a
		}()
	}
	for len(asked) > 0 {
		var a answer[T]
		select {
		case a = <-answered:
		case <-ctx.Done():
			select {
			case a = <-answered:
			default:
				for _, one := range asked {
					r.leave(one)
				}
				return answers
			}
		}
		answers[a.index] = a
		delete(asked, a.index)
	}
	return answers
}

// reader is one running read. It occupies a slot until it ends or hangs.
type reader struct {
	process Process
	free    func() // gives up the reader's slot
	done    bool
	left    bool
}

// begin waits for a slot. It returns nil in three cases: no slot gets free in time, a reader of this process has been
// abandoned, or too many readers run.
func (r *readers) begin(ctx context.Context, p Process, limit int) *reader {
	if !r.may(p, limit) {
		return nil
	}
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	one := &reader{process: p, free: sync.OnceFunc(func() { <-r.slots })}
	time.AfterFunc(slowReadTime, one.free)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.running++
	return one
}

func (r *readers) may(p Process, limit int) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.left[p] == 0 && r.running < limit
}

func (r *readers) end(one *reader) {
	one.free()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.running--
	one.done = true
	if one.left {
		if r.left[one.process]--; r.left[one.process] == 0 {
			delete(r.left, one.process)
		}
	}
}

// leave abandons a reader.
func (r *readers) leave(one *reader) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if !one.done {
		one.left = true
		r.left[one.process]++
	}
}

// file returns a function that reads a file of a process.
func file[T any](r *readers, name string, take func(io.Reader) (T, error)) taker[T] {
	return func(ctx context.Context, p Process) (T, error) {
		opened, err := r.open(Folder(p.PID) + "/" + name)
		if err != nil {
			var none T
			return none, err
		}
		defer opened.Close()
		return take(waited{ctx, opened})
	}
}

// waited ends a read if its caller no longer waits.
type waited struct {
	ctx  context.Context
	text io.Reader
}

func (w waited) Read(buffer []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, ErrLate
	}
	return w.text.Read(buffer)
}
