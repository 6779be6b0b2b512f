// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

// A process in the middle of an exec can block a process that asks the kernel about it: for its open files, its program, its
// state or a comparison of files. The kernel closes files then, and holds the lock that these questions take. The file
// system of such a file decides how long: a user's own (FUSE), or NFS. The process itself can do nothing until the exec
// ends, so no new work of it can be in flight.
//
// So the guard asks in another goroutine and goes on without the answer. A process that does not answer is not asked
// again until its question has returned. The guard then scans again. Nothing wakes the guard before that.

// errCrowd means that too many processes do not answer, so that no other one is asked.
// It is a type, because fmt would make the start of mpirun-wrap 0.05 ms slower, which links this package.
var errCrowd crowdError

type crowdError struct{}

func (crowdError) Error() string {
	return "too many processes of its user are in the middle of an exec: " + proc.ErrSilent.Error()
}

func (crowdError) Unwrap() error { return proc.ErrSilent }

const (
	// answerTime is the time in which an answer comes, or a part of it. It takes some microseconds on a node that is
	// not overloaded.
	answerTime = 20 * time.Millisecond
	// roundTime limits the wait of one round of the guard for slow answers. After that, it waits for lateTime each.
	roundTime = 200 * time.Millisecond
	lateTime  = time.Millisecond
	// maxSilent limits the questions that have not returned, because each takes a thread, with 96 KiB of stacks. Go keeps
	// the thread. It must not end, because a child that dies with the thread that started it may be this thread's
	// (PR_SET_PDEATHSIG). If there are as many, the guard asks no process, because any other may be in the middle of an
	// exec, too.
	maxSilent = 64
)

// asker asks questions about processes, one at a time, for one goroutine.
type asker struct {
	spare time.Duration // what this round may still wait for slow answers
	nudge func()        // ends a wait of the guard

	mutex    sync.Mutex
	silent   map[int]bool // pids of questions that have not returned
	returned atomic.Bool  // a question of a silent process has returned
}

func newAsker() *asker { return &asker{spare: roundTime, silent: map[int]bool{}, nudge: func() {}} }

// begin begins a round of the guard.
func (a *asker) begin() { a.spare = roundTime }

// question is a question that another goroutine asks.
type question struct {
	pid        int
	steps      atomic.Int64 // of progress
	done, left bool         // guarded by the asker's mutex
}

// ask asks the kernel about a process. The function calls step for each part of a long answer. It must not use what the
// guard changes, because it may return after ask. The error is proc.ErrSilent if it does not return in time.
func ask[T any](a *asker, pid int, about func(step func()) (T, error)) (value T, err error) {
	if err := a.mayAsk(pid); err != nil {
		return value, err
	}
	type answer struct {
		value T
		err   error
	}
	q, answers := &question{pid: pid}, make(chan answer, 1)
	go func() {
		value, err := about(func() { q.steps.Add(1) })
		answers <- answer{value, err}
		a.end(q)
	}()
	pause := max(min(answerTime, a.spare), lateTime)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	began, steps := time.Now(), int64(0)
	for {
		select {
		case got := <-answers:
			a.charge(time.Since(began))
			return got.value, got.err
		case <-timer.C:
		}
		if now := q.steps.Load(); now > steps && time.Since(began) < a.spare {
			steps = now
			timer.Reset(pause)
			continue
		}
		a.charge(time.Since(began))
		if a.leave(q) {
			return value, proc.ErrSilent
		}
		got := <-answers
		return got.value, got.err
	}
}

// charge subtracts the time of a slow answer from the round's time.
func (a *asker) charge(took time.Duration) {
	if took >= lateTime {
		a.spare -= took
	}
}

// mayAsk returns proc.ErrSilent for a process that has not answered yet, and errCrowd if there are too many of them.
func (a *asker) mayAsk(pid int) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	switch {
	case a.silent[pid]:
		return proc.ErrSilent
	case len(a.silent) >= maxSilent:
		return errCrowd
	}
	return nil
}

// end notes that a question has returned.
func (a *asker) end(q *question) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if q.done = true; !q.left {
		return
	}
	delete(a.silent, q.pid)
	a.returned.Store(true)
	a.nudge()
}

// leave gives up a question, unless its answer has come.
func (a *asker) leave(q *question) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if !q.done {
		q.left, a.silent[q.pid] = true, true
	}
	return q.left
}

// unanswered returns how many processes do not answer.
func (a *asker) unanswered() int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return len(a.silent)
}
