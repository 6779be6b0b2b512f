// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// Tests of several packages run at the same time. A few tests disturb all others on the machine: programs of all tests
// see their processes, which do not answer, or their load delays all. Such a test calls alone. All others call beside,
// when they make a node.
//
// A test holds the lock "running" until it ends. It holds the lock "turn" while it waits for that one. So a test that
// waits to be alone lets no new test begin, and waits for those that run.

// crowd is what the tests of this process are doing.
var crowd = struct {
	sync.Mutex
	nodes map[string]int  // by the name of the test, whose subtests count too
	alone map[string]bool // tests that disturb others
	held  *os.File        // while these run
}{nodes: map[string]int{}, alone: map[string]bool{}}

// Alone makes a test wait until no other test has a node, and lets none begin. No test that calls it may be parallel.
// The next test of this process ends the wait of the others.
func Alone(t *testing.T) {
	t.Helper()
	NeedRoot(t)
	crowd.Lock()
	defer crowd.Unlock()
	crowd.alone[TestOf(t)] = true
	if crowd.held == nil {
		turn := lockMachine(t, "turn", unix.LOCK_EX)
		defer turn.Close()
		crowd.held = lockMachine(t, "running", unix.LOCK_EX)
	}
}

// beside waits until no test is alone. No test is alone then until this test ends.
func beside(t *testing.T) {
	t.Helper()
	test := TestOf(t)
	first, isAlone := enter(test)
	if isAlone {
		return
	}
	t.Cleanup(func() {
		crowd.Lock()
		defer crowd.Unlock()
		crowd.nodes[test]--
	})
	if first { // a test that has a node already must not wait for one that waits for its end
		turn := lockMachine(t, "turn", unix.LOCK_SH)
		defer turn.Close()
	}
	running := lockMachine(t, "running", unix.LOCK_SH)
	t.Cleanup(func() { running.Close() })
}

// enter notes that a test makes a node. It reports whether this is its first one, and whether the test is alone.
func enter(test string) (first, isAlone bool) {
	crowd.Lock()
	defer crowd.Unlock()
	if crowd.alone[test] {
		return false, true
	}
	if crowd.held != nil {
		crowd.held.Close()
		crowd.held = nil
	}
	crowd.nodes[test]++
	return crowd.nodes[test] == 1, false
}

// lockMachine takes a lock that all tests of this source share.
func lockMachine(t *testing.T, name string, how int) *os.File {
	t.Helper()
	folder := must.Get(testnode.Shared())(t)
	must.OK(t, os.MkdirAll(folder, 0o755))
	file := must.Get(os.Create(filepath.Join(folder, name+".lock")))(t)
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return file
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			t.Fatalf("cannot lock %s: %v", file.Name(), err)
		}
	}
}
