// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/night"
)

// subtest returns a name for a point. The name has no slash, because -run splits names at slashes.
func subtest(point fmt.Stringer) string { return strings.ReplaceAll(point.String(), "/", ":") }

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
	switch {
	case e2e.Named(t):
		return points
	case e2e.Everything:
		return e2e.Tonight(points)
	}
	return e2e.Nth(points, min(every*thinner, max(len(points)/2, 1)))
}

// mayMiss is how many of n points a test need not reach again: one, and one of twenty, in the sweep. On a busy machine,
// the run that found the points repeated some questions while it waited, and a faster run asks them once. So a sample
// may miss half of its points and two more, but not all.
func mayMiss(n int) int {
	if e2e.Everything && !night.Whole() {
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
	sweepOn(t, s.stand, points, try)
}

// sweepOn is sweep on nodes that stand makes.
func sweepOn[P fmt.Stringer](
	t *testing.T, stand func(*testing.T) testNode, points []P, try func(testNode, P) (reached bool),
) {
	t.Helper()
	e2e.NeedRoot(t) // the check is here, because a goroutine cannot skip the test
	sideBySide := 4
	if !e2e.Everything {
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
					p, fresh = stand(t), true
				}
				fresh = t.Run(subtest(points[i]), func(t *testing.T) {
					tried.Add(1)
					p := testNode{p.Again(t)}
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
	must.Hold(t, n != 0, "none of %d points has the name that -run gives", len(points))
	if !e2e.Named(t) {
		e2e.Report(t, t.Name(), n, int(failed.Load()), time.Since(began))
	}
	if int(missed.Load()) > mayMiss(n) {
		t.Errorf("%d of %d points were not reached: the sweep proves too little", missed.Load(), n)
	}
}

// testNode is the node of one test, with the methods of these tests alone.
type testNode struct{ e2e.Node }

// cluster is a real Slurm, with the methods of these tests alone.
type cluster struct{ *e2e.Cluster }

func newCluster(t *testing.T, policy string, o lab.Options) *cluster {
	t.Helper()
	return &cluster{e2e.NewCluster(t, policy, o)}
}
