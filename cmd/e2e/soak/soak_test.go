// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// Many random jobs run on a real Slurm whose hooks are the production binaries. Most jobs have a random fault. After
// each job, its node is in service. When a node has no job, nothing of any job is left. The neighbours of an ended rank
// continue to compute. Every client that computes does so under MPS. At the end, no process of root is left. Kills in
// prolog and epilog are in cmd/e2e/kill, and attacks in cmd/e2e/hostile.
//
//	SOAK_JOBS     number of jobs; 50
//	SOAK_SEED     seed of the jobs and their faults; 1
//	SOAK_MINUTES  end of the soak before all jobs have run; the report has the number of the jobs that have run
//	SOAK_ONLY     numbers of jobs, "17,18": only these run, to repeat a failure
//
// A seed always gives the same jobs. Which jobs run on a node at the same time differs between runs.
func TestSoak(t *testing.T) {
	jobs, seed, minutes := e2e.Number(t, "SOAK_JOBS", 50), e2e.Number(t, "SOAK_SEED", 1), e2e.Number(t, "SOAK_MINUTES", 0)
	limit := time.Duration(minutes) * time.Minute
	if minutes == 0 {
		limit = 24 * time.Hour
	}
	s := newSoak(t, uint64(seed), limit)
	began := time.Now()
	plan := wanted(t, uint64(seed), jobs)
	s.planned = len(plan)
	s.do(plan, limit)
	s.report(time.Since(began))
}

// wanted returns the jobs of a run.
func wanted(t *testing.T, seed uint64, jobs int) (all []plannedJob) {
	t.Helper()
	only := os.Getenv("SOAK_ONLY")
	if only == "" {
		for n := range jobs {
			all = append(all, planned(seed, n))
		}
		return all
	}
	for _, text := range strings.Split(only, ",") {
		n, err := strconv.Atoi(text)
		must.Have(t, err == nil, "SOAK_ONLY is %q: give numbers of jobs, with commas", only)
		all = append(all, planned(seed, n))
	}
	return all
}

// The nodes are of two kinds. A shared node runs several jobs side by side. A job that takes a node down has a
// node of the second kind to itself. The last node has shards, and runs the jobs that have one.
//
// SOAK_WIDE (1, up to 4) multiplies the number of nodes, for a machine with many cores. Several soaks can run side by
// side if each has its own SOAK_NAME.
var (
	sharedNodes = 3 * wide()
	aloneNodes  = 4 * wide()
)

// The kinds of nodes.
const (
	shared  = "shared"
	alone   = "alone"
	sharded = "sharded"
)

// kind is the kind of node that the job needs.
func (j plannedJob) kind() string {
	switch {
	case j.shard:
		return sharded
	case j.fault.alone:
		return alone
	}
	return shared
}

// sideBySide is the number of jobs that run on a shared node at the same time.
const sideBySide = 5

func wide() int {
	n, _ := strconv.Atoi(os.Getenv("SOAK_WIDE"))
	return max(1, min(n, 4))
}

// soak is one run of the test.
type soak struct {
	*e2e.Cluster
	seed    uint64
	planned int
	folder  string // for the output of the ranks
	queue   *queue

	mutex    sync.Mutex
	done     map[string]int // jobs by fault
	judged   int            // neighbours that were checked
	failed   map[string]int // failures by kind
	mistaken int            // jobs of which Slurm has aborted a step by mistake
}

// The kinds of failures, as the report names them.
const (
	left       = "left behind"
	drained    = "drained nodes"
	rootLeft   = "root's processes left"
	lost       = "neighbours lost to a cancelled rank"
	wrongEnd   = "jobs that did not end as they should"
	outsideMPS = "ranks without MPS"
)

func newSoak(t *testing.T, seed uint64, limit time.Duration) *soak {
	t.Helper()
	t.Parallel()
	user := e2e.NeedSlurm(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit+jobLimit)
	t.Cleanup(cancel)
	c := &e2e.Cluster{T: t, Ctx: ctx, User: user, Top: e2e.PublicDir(t), TestNodes: map[string]e2e.Node{}}
	s := &soak{Cluster: c, seed: seed, folder: filepath.Join(c.Top, "out"), done: map[string]int{}, failed: map[string]int{}}
	must.OK(t, errors.Join(os.Mkdir(s.folder, 0o755), os.Chown(s.folder, int(e2e.UID), int(e2e.GID))))
	o := s.options()
	for i := range o.Nodes {
		name := fmt.Sprintf("%s%d", o.Prefix, i+1)
		c.TestNodes[name] = soakTestNode(c, name, []string{"job", "gpu"}[i%2])
	}
	o.Prolog, o.Epilog, o.TaskProlog = c.Hook("prolog"), c.Hook("epilog"), c.Hook("task-prolog")
	c.Hook("mpirun-wrap")
	s.start(o)
	for _, p := range c.TestNodes { // the device files of the GPUs and of the memory driver
		must.OK(t, e2e.LinkAll(filepath.Join(s.Dir(), "dev"), p.Paths().Devices()))
	}
	return s
}

// start starts the cluster. If another soak has nodes with the same names, start waits for its end, for a minute at
// most.
func (s *soak) start(o lab.Options) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, time.Minute)
	defer cancel()
	var err error
	if s.Cluster.Cluster, err = lab.Start(ctx, o); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { must.Note(s.T, s.Stop()) })
}

// options returns the options of the cluster. ConstrainDevices gives Slurm control groups. Without them Slurm does
// not find the processes that a launcher leaves when Slurm kills it.
func (s *soak) options() lab.Options {
	prefix, all := "soak"+os.Getenv("SOAK_NAME"), sharedNodes+aloneNodes+1
	o := lab.Options{Dir: filepath.Join(s.Top, "lab"), Prefix: prefix, Nodes: all,
		GresOf: map[string]string{fmt.Sprint(prefix, all): "gpu:4,shard:8"}, UTSNodes: true, BootIDs: true,
		ConstrainDevices: true, GPUs: len(e2e.GPUsOfANode), CPUs: 256, Features: "mps", PrologFlags: "Alloc", Bundle: os.Getenv("SLURM_BUNDLE")}
	for _, line := range shortTimeouts {
		o.Extra = append(o.Extra, strings.ReplaceAll(line, "%D", o.Dir))
	}
	return o
}

// shortTimeouts are lines of slurm.conf with shorter timeouts, because a soak has no time for the usual ones. The
// logs of Slurm are shorter than usual.
var shortTimeouts = []string{"AuthInfo=socket=%D/run/munge.socket,cred_expire=10", "KillWait=2", "BatchStartTimeout=1", "MinJobAge=20",
	"SlurmctldDebug=info", "SlurmdDebug=info", "MaxArraySize=100"}

// soakTestNode returns the test node behind a node of the cluster. It keeps the logs of the daemons, because they name
// the clients.
func soakTestNode(c *e2e.Cluster, name, scope string) e2e.Node {
	policy := testnode.Default(fmt.Sprintf("scope = %q", scope), `drain_grace = "200ms"`, `keep_logs = "always"`)
	p := e2e.NodeIn(c.T, filepath.Join(c.Top, name), policy, e2e.GPUsOfANode...)
	p.Ctx = c.Ctx
	p.Facts(`prolog_deadline = "20s"`, `epilog_deadline = "20s"`)
	return p
}

// do runs the jobs of the plan until all have run or the time is up.
func (s *soak) do(plan []plannedJob, limit time.Duration) {
	ctx, cancel := context.WithTimeout(s.Ctx, limit)
	defer cancel()
	s.queue = s.watch()
	work := map[string]chan plannedJob{shared: make(chan plannedJob), alone: make(chan plannedJob), sharded: make(chan plannedJob)}
	var feeders, all sync.WaitGroup
	for i, name := range s.Nodes() {
		kind, workers := shared, sideBySide
		switch {
		case i == sharedNodes+aloneNodes:
			kind = sharded
		case i >= sharedNodes:
			kind, workers = alone, 1
		}
		n := &soakNode{soak: s, name: name, testNode: s.TestNodes[name], work: work[kind]}
		for range workers {
			all.Go(n.run)
		}
	}
	for kind, into := range work {
		feeders.Go(func() {
			defer close(into)
			for _, j := range plan {
				if j.kind() != kind {
					continue
				}
				select {
				case into <- j:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	feeders.Wait()
	all.Wait()
	s.queue.stop()
	for _, process := range s.rootsLeft() {
		s.wrong(plannedJob{number: -1}, rootLeft, process)
	}
}
