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

// The kernel reads an environment and a command line from the memory of the process. So the process's owner decides
// how long the read takes and how much there is to read. prctl(PR_SET_MM_MAP) needs no privilege. It gives a process
// an environment of many GiB at no cost. A page of a FUSE file system may never arrive.
//
// So every read here has a limit in bytes and in time, and only a few reads run at once. A reader that hangs is
// abandoned and counted. Until that reader has returned, nothing more of its process is read.
const (
	// MaxBytes limits the read of one environment. A control daemon's environment has four variables.
	MaxBytes     = 1 << 20
	maxLine      = 8 << 10  // for a command line: a path of 4 KiB and the control program's options
	bufferBytes  = 16 << 10 // for one reader; a value must fit into it
	deadline     = time.Second
	maxReaders   = 256                   // including the abandoned readers
	maxAtWork    = 8                     // readers that do not hang
	slowReadTime = 20 * time.Millisecond // after this time a reader counts as hanging and gives its slot to another
)

// ErrLate means that a process's memory did not arrive in time, or that no time was left to read it.
var ErrLate = errors.New("its memory does not come in time")

// ErrLong means that an environment exceeds the limit, and the variable is not in the part that was read.
var ErrLong = errors.New("its environment is too long")

// Environment is the result of reading a process's environment.
type Environment struct {
	Values map[string]string // of the requested variables that are set; the first entry counts, as in getenv
	Empty  bool              // no environment: the process is about to exec or to end
	Err    error
}

// Environments looks for variables in the environments of processes, within one second for all. It reads them in the
// order of the list.
func Environments(ctx context.Context, procs []site.Process, names ...string) []Environment {
	return all.environments(ctx, procs, names)
}

// Variables looks for variables in the environment of one process.
func Variables(ctx context.Context, p site.Process, names ...string) Environment {
	return Environments(ctx, []site.Process{p}, names...)[0]
}

// CommandLine is the beginning of a process's command line.
type CommandLine struct {
	Args []string
	Err  error
}

// CommandLines reads the command lines of processes, within one second for all.
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

// readers holds the state of the running and the abandoned readers.
type readers struct {
	slots   chan struct{}
	open    func(path string) (io.ReadCloser, error)
	mutex   sync.Mutex
	running int
	left    map[site.Process]int // abandoned readers per process
}

func (r *readers) environments(ctx context.Context, procs []site.Process, names []string) []Environment {
	found := make([]Environment, len(procs))
	for i, a := range each(ctx, r, procs, "environ", func(text io.Reader) (Environment, error) { return search(text, names) }) {
		found[i] = a.value
		found[i].Err = a.err
	}
	return found
}

// search looks for variables with a small buffer.
func search(text io.Reader, names []string) (Environment, error) {
	found := Environment{Values: map[string]string{}}
	buffer := make([]byte, bufferBytes)
	kept, total := 1, 0 // the buffer begins with a zero, because each entry follows a zero
	for {
		n, err := text.Read(buffer[kept : len(buffer)-1])
		total += n
		end := kept + n
		if err != nil { // the last entry may lack its final zero
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

// take records the variables in a piece of an environment. It returns the offset at which the next read must
// continue.
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

// find returns the index of the first entry with this beginning, or -1.
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

// each reads a file of every process. Its answer for a process is ErrLate if the file does not arrive in time.
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

// reader is one running read. It occupies a slot until it ends or hangs.
type reader struct {
	of   site.Process
	free func() // gives up the reader's slot
	done bool
	left bool
}

// begin waits for a slot. It returns nil in three cases: no slot gets free in time, a reader of this process has been
// abandoned, or too many readers run.
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

// leave abandons a reader.
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
