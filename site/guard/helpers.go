// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

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

// program is a program that the guard has started in a session of its own.
type program struct {
	proc    proc.Process
	in, out *os.File      // pipes to its stdin and from its stdout
	reaped  chan struct{} // closed when it has ended
	used    time.Duration // its processor time, when it has ended
}

// startProgram starts a program from its command line. Its stderr is /dev/null.
func startProgram(line ...string) (*program, error) {
	null, err1 := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	stdin, in, err2 := os.Pipe()
	out, stdout, err3 := os.Pipe()
	defer null.Close() // of nil, this only returns an error
	defer stdin.Close()
	defer stdout.Close()
	var process *os.Process
	err := errors.Join(err1, err2, err3)
	if err == nil {
		process, err = os.StartProcess(line[0], line, &os.ProcAttr{
			Dir: "/", Env: []string{}, Files: []*os.File{stdin, stdout, null}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
	}
	if err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("cannot start %q: %w", line, err)
	}
	stat, _ := proc.ReadStat(process.Pid) // the pid is not reused, because the child is not reaped
	p := &program{proc: stat.Process, in: in, out: out, reaped: make(chan struct{})}
	go func() {
		if state, err := process.Wait(); err == nil {
			p.used = state.UserTime() + state.SystemTime()
		}
		close(p.reaped)
	}()
	return p, nil
}
