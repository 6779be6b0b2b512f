// SPDX-License-Identifier: Apache-2.0

package own

import (
	"os"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

// A keeper finds what the earlier one has left, also if that was killed in the middle of a record, and a long life of
// the step makes no long state.
func TestState(t *testing.T) {
	first := newKeeper(t)
	daemon := proc.Process{PID: 9, Start: 4}
	if err := first.register(os.Getpid(), hello{Hidden: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := first.state.file.WriteAt([]byte("\n{\"Rank\":{\"pid\":1"), first.state.size()); err != nil {
		t.Fatal(err)
	}
	first.keepRecord(record{Daemon: &daemon})
	next := &keeper{state: first.state, ranks: map[int]rank{}}
	if err := next.resume(); err != nil {
		t.Fatal(err)
	}
	if got := next.ranks[os.Getpid()]; len(next.ranks) != 1 || !got.Hidden || got != first.ranks[os.Getpid()] {
		t.Errorf("the ranks are %+v", next.ranks)
	}
	if got := next.process.Load(); got == nil || *got != daemon {
		t.Errorf("the daemon is %v, want %v", got, daemon)
	}
	next.ranks = map[int]rank{}
	for range maxState / 40 {
		next.state.add(record{Rank: &rank{Process: daemon}})
	}
	if size := next.state.size(); size > maxState+1000 {
		t.Errorf("the state has %d bytes", size)
	}
	if _, err := first.state.refuse(os.ErrNotExist); err != nil {
		t.Fatal(err)
	}
	if err := next.resume(); err == nil || *next.process.Load() != daemon {
		t.Errorf("a refusal: %v; daemon %v", err, next.process.Load())
	}
}
