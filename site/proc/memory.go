// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// The kernel fetches an environment and a command line from the memory of the process, and the owner of that memory
// decides how long this takes and how much there is: prctl(PR_SET_MM_MAP) needs no privilege and gives a process an
// environment of many GiB that costs it nothing, and a page of a file system in user space may never come. So every read
// here is bounded in bytes and in time, only a few are at work at once, and a reader that hangs is left behind: it is
// counted, and nothing more of its process is read until it is back.
const (
	// MaxBytes is what is read of one environment. That of a control daemon has four variables.
	MaxBytes     = 1 << 20
	maxLine      = 8 << 10  // of a command line: a path of 4 KiB and the options of the control program
	bufferBytes  = 16 << 10 // for one reader; a value must fit into it
	deadline     = time.Second
	maxReaders   = 256                   // with those that were left behind
	maxAtWork    = 8                     // readers of which no one has hung yet
	slowReadTime = 20 * time.Millisecond // after which a reader counts as hanging, and keeps no other waiting
)

// ErrLate means that a process did not give its memory in time, or that no time was left to ask for it.
var ErrLate = errors.New("its memory does not come in time")

// ErrLong means that an environment is larger than the bound, and what was looked for is not in what was read.
var ErrLong = errors.New("its environment is too long")

// Environment is what was found in the environment of a process.
type Environment struct {
	Values map[string]string // those of the variables asked for that are set; the first counts, as for getenv
	Empty  bool              // there is none: the process is about to run another program, or to end
	Err    error
}

// Environments looks for variables in the environments of processes, all within a second. The first of the list are read
// first.
func Environments(ctx context.Context, procs []site.Process, names ...string) []Environment {
	return all.environments(ctx, procs, names)
}

// Variables looks for variables in the environment of one process.
func Variables(ctx context.Context, p site.Process, names ...string) Environment {
	return Environments(ctx, []site.Process{p}, names...)[0]
}

// CommandLine is the beginning of what a process was started with.
type CommandLine struct {
	Args []string
	Err  error
}

// CommandLines reads the command lines of processes, all within a second.
func CommandLines(ctx context.Context, procs []site.Process) []CommandLine {
	lines := make([]CommandLine, len(procs))
	for i, a := range each(ctx, &all, procs, "cmdline", func(text io.Reader) ([]byte, error) {
		return io.ReadAll(io.LimitReader(text, maxLine))
	}) {
		lines[i] = CommandLine{strings.Split(strings.TrimRight(string(a.value), "\x00"), "\x00"), a.err}
	}
	return lines
}

// all are the readers of this process.
var all = readers{slots: make(chan struct{}, maxAtWork), left: map[site.Process]int{}, open: func(path string) (io.ReadCloser, error) { return os.Open(path) }}

// readers are those that are at work or have been left behind.
type readers struct {
	slots   chan struct{}
	open    func(path string) (io.ReadCloser, error)
	mutex   sync.Mutex
	running int
	left    map[site.Process]int // how many have been left behind at a process
}

func (r *readers) environments(ctx context.Context, procs []site.Process, names []string) []Environment {
	found := make([]Environment, len(procs))
	for i, a := range each(ctx, r, procs, "environ", func(text io.Reader) (Environment, error) { return search(text, names) }) {
		found[i] = a.value
		found[i].Err = a.err
	}
	return found
}

// search looks for variables through a small buffer.
func search(text io.Reader, names []string) (Environment, error) {
	found := Environment{Values: map[string]string{}}
	buffer := make([]byte, bufferBytes)
	kept, total := 1, 0 // a zero first: each entry begins behind one
	for {
		n, err := text.Read(buffer[kept : len(buffer)-1])
		total += n
		end := kept + n
		if err != nil { // the last entry may have no end of its own
			buffer[end] = 0
			end++
		}
		hold := found.take(buffer[:end], names)
		switch {
		case len(found.Values) == len(names):
			return found, nil
		case errors.Is(err, io.EOF):
			found.Empty = total == 0
			return found, nil
		case err != nil:
			return found, err
		case total >= MaxBytes || hold == 0 && end == len(buffer)-1:
			return found, ErrLong
		}
		kept = copy(buffer, buffer[hold:end])
	}
}

// take notes the variables that are in a piece of an environment, and returns from where on the next piece is needed to
// know more.
func (e Environment) take(piece []byte, names []string) (hold int) {
	hold = len(piece)
	for _, name := range names {
		if _, known := e.Values[name]; known {
			continue
		}
		hold = min(hold, max(0, len(piece)-len(name)-1))
		at := find(piece, name+"=")
		if at < 0 {
			continue
		}
		value, _, whole := bytes.Cut(piece[at+len(name)+1:], []byte{0})
		if !whole {
			hold = min(hold, at-1)
			continue
		}
		e.Values[name] = string(value)
	}
	return hold
}

// find is the index of the first entry that begins so, -1 for none.
func find(piece []byte, beginning string) int {
	for from := 1; ; {
		at := bytes.Index(piece[min(from, len(piece)):], []byte(beginning))
		if at < 0 {
			return -1
		}
		if at += from; piece[at-1] == 0 {
			return at
		}
		from = at + 1
	}
}

type answer[T any] struct {
	at    int
	value T
	err   error
}

// each reads a file of every process. What is not there in time is ErrLate.
func each[T any](ctx context.Context, r *readers, procs []site.Process, file string, take func(io.Reader) (T, error)) []answer[T] {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	answers, asked := make([]answer[T], len(procs)), map[int]*reader{}
	came := make(chan answer[T], len(procs))
	for at, p := range procs {
		answers[at].err = ErrLate
		one := r.begin(ctx, p)
		if one == nil {
			continue
		}
		asked[at] = one
		go func() {
			a := answer[T]{at: at}
			a.value, a.err = read(ctx, r, p, file, take)
			r.end(one)
			came <- a
		}()
	}
	for len(asked) > 0 {
		var a answer[T]
		select {
		case a = <-came:
		case <-ctx.Done():
			select {
			case a = <-came:
			default:
				for _, one := range asked {
					r.leave(one)
				}
				return answers
			}
		}
		answers[a.at] = a
		delete(asked, a.at)
	}
	return answers
}

// reader is one that is at work. Others begin when it has ended, or hangs.
type reader struct {
	of   site.Process
	free func() // gives its slot away
	done bool
	left bool
}

// begin waits for a slot. It is nil when none is free in time, when a process has already cost a reader, and when too many
// readers have been left behind.
func (r *readers) begin(ctx context.Context, p site.Process) *reader {
	if !r.may(p) {
		return nil
	}
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	one := &reader{of: p, free: sync.OnceFunc(func() { <-r.slots })}
	time.AfterFunc(slowReadTime, one.free)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.running++
	return one
}

func (r *readers) may(p site.Process) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.left[p] == 0 && r.running < maxReaders
}

func (r *readers) end(one *reader) {
	one.free()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.running--
	one.done = true
	if one.left {
		if r.left[one.of]--; r.left[one.of] == 0 {
			delete(r.left, one.of)
		}
	}
}

// leave leaves a reader behind.
func (r *readers) leave(one *reader) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if !one.done {
		one.left = true
		r.left[one.of]++
	}
}

func read[T any](ctx context.Context, r *readers, p site.Process, file string, take func(io.Reader) (T, error)) (T, error) {
	opened, err := r.open(fmt.Sprintf("/proc/%d/%s", p.PID, file))
	if err != nil {
		var none T
		return none, err
	}
	defer opened.Close()
	return take(waited{ctx, opened})
}

// waited ends a read when no one waits for it any more.
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
