// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/rerun"
)

// A sweep is a run of some expensive tests alone. SWEEP names it, and `make sweep` runs each:
//
//	points  prolog and epilog are killed or refused at each of their effects; other runs try some effects
//	race    many programs run at the same time, and they have the race detector
//
// A test joins a sweep by joinSweep.
var (
	sweeps     = []string{"points", "race"}
	sweepName  = os.Getenv("SWEEP")
	everything = sweepName == "points"
	sweepTests sync.Map // the name of a test to the name of its sweep
)

// joinSweep adds a test to the tests that a sweep runs. The test calls it before it makes a node.
func joinSweep(t *testing.T, name string) {
	t.Helper()
	sweepTests.Store(testOf(t), name)
	skipOutsideSweep(t)
}

// skipOutsideSweep skips a test that is not in the sweep that SWEEP names. Each test that needs root calls it.
func skipOutsideSweep(t *testing.T) {
	t.Helper()
	if sweepName != "" && !slices.Contains(sweeps, sweepName) {
		t.Fatalf("SWEEP is %q: give one of %q", sweepName, sweeps)
	}
	if own, _ := sweepTests.Load(testOf(t)); sweepName != "" && own != sweepName {
		t.Skipf("not of the sweep: SWEEP is %s", sweepName)
	}
}

// testOf returns the name of the test to which a subtest belongs.
func testOf(t *testing.T) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}

// named reports whether -run names a subtest of this test. The test then tries all points, because any of them may
// have that name.
func named(t *testing.T) bool {
	for pattern := range strings.SplitSeq(flag.Lookup("test.run").Value.String(), "|") {
		test, _, _ := strings.Cut(pattern, "/")
		this, _ := regexp.MatchString(test, testOf(t))
		if this && strings.Count(pattern, "/") > strings.Count(t.Name(), "/") {
			return true
		}
	}
	return false
}

// subtest returns a name for a point. The name has no slash, because -run splits names at slashes.
func subtest(point fmt.Stringer) string { return strings.ReplaceAll(point.String(), "/", ":") }

// printRerun prints the command that runs the test again, if the test fails.
func printRerun(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to run it again: %s", rerun.Command(t, "REQUIRE_LAB", "SLURM_BUNDLE", "SWEEP"))
		}
	})
}

// some returns the points for which there is time. It returns more points of a job with one GPU and one daemon than
// of other jobs.
func some[P any](t *testing.T, s shape, points []P, every int) []P {
	if s == shapes[0] {
		return sample(t, points, 5)
	}
	return sample(t, points, every)
}

// thinner makes samples smaller than the tests ask for, because make test must end within seven minutes.
const thinner = 6

// sample returns one of each every × thinner points. It returns all of them in the sweep, and if -run names a point.
func sample[P any](t *testing.T, points []P, every int) []P {
	if everything || named(t) {
		return points
	}
	return nth(points, min(every*thinner, max(len(points)/2, 1)))
}

// nth returns one of each so many points.
func nth[P any](points []P, every int) []P {
	var chosen []P
	for i := every / 2; i < len(points); i += every {
		chosen = append(chosen, points[i])
	}
	return chosen
}

// pointDeadline limits the time at one point.
const pointDeadline = time.Minute

// mayMiss is how many of n points a test need not reach again: one, and one of twenty, in the sweep. On a busy machine,
// the run that found the points repeated some questions while it waited, and a faster run asks them once. So a sample
// may miss half of its points and two more, but not all.
func mayMiss(n int) int {
	if everything {
		return n/20 + 1
	}
	return min(n/2+2, n-1)
}

// sweep tries every point as a subtest. Several nodes work at the same time, because the programs spend most of
// their time waiting for daemons.
//
// A failed point may leave something on its node, so sweep replaces that node.
func sweep[P fmt.Stringer](t *testing.T, s shape, points []P, try func(testNode, P) (reached bool)) {
	t.Helper()
	needRoot(t) // the check is here, because a goroutine cannot skip the test
	sideBySide := 4
	if !everything {
		sideBySide = 2 // because other tests run beside this one
	}
	began := time.Now()
	var tried, missed, failed atomic.Int32
	var all sync.WaitGroup
	for shard := range sideBySide {
		all.Go(func() {
			p, fresh := testNode{}, false
			for i := shard; i < len(points); i += sideBySide {
				if !fresh {
					p, fresh = s.stand(t), true
				}
				fresh = t.Run(subtest(points[i]), func(t *testing.T) {
					tried.Add(1)
					p := p.again(t)
					defer func() {
						if t.Failed() {
							failed.Add(1)
							t.Logf("at point %v", points[i])
						}
					}()
					if !try(p, points[i]) {
						missed.Add(1)
						t.Logf("not reached: %v", points[i])
					}
				})
			}
		})
	}
	all.Wait()
	n := int(tried.Load())
	t.Logf("%d points, %d of them not reached again", n, missed.Load())
	if n == 0 {
		t.Errorf("none of %d points has the name that -run gives", len(points))
	}
	if !named(t) {
		report(t, t.Name(), n, int(failed.Load()), time.Since(began))
	}
	if int(missed.Load()) > mayMiss(n) {
		t.Errorf("%d of %d points were not reached: the sweep proves too little", missed.Load(), n)
	}
}
