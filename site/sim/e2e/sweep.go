// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/night"
	"github.com/slurm-mps/slurm-mps/site/sim/rerun"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// Report adds a test's result to the file that RELIABILITY names, for docs/limits.md. A line
// has the name, the number of tries, the number of failures, the seconds and perhaps a sentence.
func Report(t *testing.T, name string, tried, failed int, took time.Duration, said ...string) {
	t.Helper()
	path := os.Getenv("RELIABILITY")
	if path == "" {
		return
	}
	file := must.Get(os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644))(t)
	defer file.Close()
	line := fmt.Sprintf("%s\t%d\t%d\t%.0f", name, tried, failed, took.Seconds())
	if _, err := fmt.Fprintln(file, strings.Join(append([]string{line}, said...), "\t")); err != nil {
		t.Fatal(err)
	}
}

// ReportEnd reports a test when it has ended. Call it first, so that its cleanup runs last and sees what all other
// cleanups find. Call begin when the test goes on after its wait for other tests.
func ReportEnd(t *testing.T) (begin func()) {
	began := time.Now()
	t.Cleanup(func() {
		if t.Skipped() {
			return
		}
		failed := 0
		if t.Failed() {
			failed = 1
		}
		Report(t, t.Name(), 1, failed, time.Since(began))
	})
	return func() { began = time.Now() }
}

// A sweep is a run of some expensive tests alone. SWEEP names it, and `make sweep` runs each:
//
//	points  prolog and epilog are killed or refused at each of their effects; other runs try some effects
//	race    many programs run at the same time, and they have the race detector
//
// A test joins a sweep by JoinSweep.
var (
	sweeps     = []string{"points", "race"}
	SweepName  = os.Getenv("SWEEP")
	Everything = SweepName == "points"
	sweepTests sync.Map // the name of a test to the name of its sweep
)

// JoinSweep adds a test to the tests that a sweep runs. The test calls it before it makes a node.
func JoinSweep(t *testing.T, name string) {
	t.Helper()
	sweepTests.Store(TestOf(t), name)
	skipOutsideSweep(t)
}

// skipOutsideSweep skips a test that is not in the sweep that SWEEP names. Each test that needs root calls it.
func skipOutsideSweep(t *testing.T) {
	t.Helper()
	must.Have(t, SweepName == "" || slices.Contains(sweeps, SweepName), "SWEEP is %q: give one of %q", SweepName, sweeps)
	if own, _ := sweepTests.Load(TestOf(t)); SweepName != "" && own != SweepName {
		t.Skipf("not of the sweep: SWEEP is %s", SweepName)
	}
}

// TestOf returns the name of the test to which a subtest belongs.
func TestOf(t *testing.T) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}

// printRerun prints the command that runs the test again, if the test fails.
func printRerun(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to run it again: %s", rerun.Command(t, "REQUIRE_LAB", "SLURM_BUNDLE", "SWEEP"))
		}
	})
}

// Named reports whether -run names a subtest of this test. The test then tries all points, because any of them may
// have that name.
func Named(t *testing.T) bool {
	for pattern := range strings.SplitSeq(flag.Lookup("test.run").Value.String(), "|") {
		test, _, _ := strings.Cut(pattern, "/")
		this, _ := regexp.MatchString(test, TestOf(t))
		if this && strings.Count(pattern, "/") > strings.Count(t.Name(), "/") {
			return true
		}
	}
	return false
}

// Nth returns one of each so many points.
func Nth[P any](points []P, every int) []P {
	var chosen []P
	for i := every / 2; i < len(points); i += every {
		chosen = append(chosen, points[i])
	}
	return chosen
}

// nights is the number of runs of `make nightly` on different days that try all points of a sweep.
const nights = 8

// Tonight returns all points, but in `make nightly` one of each so many: every day others.
func Tonight[P any](points []P) []P {
	if !night.Whole() {
		return points
	}
	today := int(time.Now().Unix() / (24 * 60 * 60))
	var chosen []P
	for i := today % min(nights, max(len(points), 1)); i < len(points); i += nights {
		chosen = append(chosen, points[i])
	}
	return chosen
}

// pointDeadline limits the time at one point.
const pointDeadline = 3 * WaitLimit

// Number reads a number from a variable of the environment.
func Number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must.Have(t, err == nil && n >= 0, "%s is %q: give a number", variable, text)
	return n
}

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
