// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"time"
)

// The kernel reads an environment and a command line from the memory of the process. So the process's owner decides
// how long the read takes and how much there is to read. prctl(PR_SET_MM_MAP) needs no privilege. It gives a process
// an environment of many GiB at no cost. A page of a FUSE file system may never arrive.
//
// So every read here has a limit in bytes and in time, and only a few reads run at once. A reader that hangs is
// abandoned and counted (readers.go). Until that reader has returned, nothing more of its process is read.
const (
	// maxBytes limits the read of one environment. A control daemon's environment has four variables.
	maxBytes    = 1 << 20
	maxLine     = 8 << 10  // for a command line: a path of 4 KiB and the control program's options
	bufferBytes = 16 << 10 // for one reader; a value must fit into it
	deadline    = time.Second
	maxReaders  = 256 // including the abandoned readers
)

// ErrLate means that a process's memory did not arrive in time, or that no time was left to read it.
var ErrLate = errors.New("its memory does not come in time")

// ErrLong means that an environment exceeds the limit, and the variable is not in the part that was read.
var ErrLong = errors.New("its environment is too long")

// ErrOverwritten means that a process has written over its environment, as setproctitle does (vLLM, SGLang, Ray,
// gunicorn). What it lacks now may have been there, and may count: the program has its own copy.
var ErrOverwritten = errors.New("its program has overwritten its environment")

// Environment is the result of reading a process's environment.
type Environment struct {
	Values map[string]string // of the requested variables that are set; the first entry counts, as in getenv
	Empty  bool              // no environment: the process is about to exec or to end
	Err    error
}

// Environments looks for variables in the environments of processes, within one second for all. It reads them in the
// order of the list.
func Environments(ctx context.Context, procs []Process, names ...string) []Environment {
	return memories.environments(ctx, procs, names)
}

// Variables looks for variables in the environment of one process.
func Variables(ctx context.Context, p Process, names ...string) Environment {
	return Environments(ctx, []Process{p}, names...)[0]
}

// commandLine is the beginning of a process's command line.
type commandLine struct {
	Args []string
	Err  error
}

// CommandLines reads the command lines of processes, within one second for all.
func CommandLines(ctx context.Context, procs []Process) []commandLine {
	lines := make([]commandLine, len(procs))
	for i, a := range each(ctx, memories, procs, file(memories, "cmdline", func(text io.Reader) ([]byte, error) {
		return io.ReadAll(io.LimitReader(text, maxLine))
	})) {
		lines[i] = commandLine{strings.Split(strings.TrimRight(string(a.value), "\x00"), "\x00"), a.err}
	}
	return lines
}

// memories are the readers of environments and command lines.
var memories = newReaders(maxReaders)

func (r *readers) environments(ctx context.Context, procs []Process, names []string) []Environment {
	found := make([]Environment, len(procs))
	environ := file(r, "environ", func(text io.Reader) (Environment, error) { return search(text, names) })
	for i, a := range each(ctx, r, procs, environ) {
		found[i] = a.value
		found[i].Err = a.err
	}
	return found
}

// search looks for variables with a small buffer. By pieces, not by entries: a user's process may claim gigabytes of
// empty entries, and one entry after the other costs eight times as much.
func search(text io.Reader, names []string) (Environment, error) {
	found := Environment{Values: map[string]string{}}
	buffer := make([]byte, bufferBytes)
	named, overwritten := false, false // each entry has a name, and the first one tells of a title
	kept, total := 1, 0                // the buffer begins with a zero, because each entry follows a zero
	for {
		n, err := text.Read(buffer[kept : len(buffer)-1])
		total += n
		end := kept + n
		if i := bytes.IndexAny(buffer[kept:end], "=\x00"); i >= 0 && !named {
			named, overwritten = true, buffer[kept+i] == 0
		}
		overwritten = overwritten || bytes.Contains(buffer[:end], []byte{0, 0})
		if err != nil { // the last entry may lack its final zero
			buffer[end] = 0
			end++
		}
		hold := found.take(buffer[:end], names)
		switch {
		case len(found.Values) == len(names):
			return found, nil
		case errors.Is(err, io.EOF) && overwritten:
			return found, ErrOverwritten
		case errors.Is(err, io.EOF):
			found.Empty = total == 0
			return found, nil
		case err != nil:
			return found, err
		case total >= maxBytes || hold == 0 && end == len(buffer)-1:
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
		entry := find(piece, name+"=")
		if entry < 0 {
			continue
		}
		value, _, whole := bytes.Cut(piece[entry+len(name)+1:], []byte{0})
		if !whole {
			hold = min(hold, entry-1)
			continue
		}
		e.Values[name] = string(value)
	}
	return hold
}

// find returns the index of the first entry with this beginning, or -1.
func find(piece []byte, beginning string) int {
	for start := 1; ; {
		index := bytes.Index(piece[min(start, len(piece)):], []byte(beginning))
		if index < 0 {
			return -1
		}
		if index += start; piece[index-1] == 0 {
			return index
		}
		start = index + 1
	}
}
