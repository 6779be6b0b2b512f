// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// Many random jobs run on a real Slurm whose hooks are the production binaries. Most jobs have a random fault. After
// each job, nothing of the job is left, and its node is in service unless the fault is a reason for a drain. The
// neighbours of an ended rank continue to compute. Every client that computes does so under MPS. Some faults are attacks
// (attack_test.go). At the end, no process of root is left. The report has the greatest age of the metrics.
//
//	SOAK_JOBS     number of jobs; 50
//	SOAK_SEED     seed of the jobs and their faults; 1
//	SOAK_MINUTES  end of the soak before all jobs have run; the report has the number of the jobs that have run
//	SOAK_LOG      file that gets a line for each job
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
	s.logTo(os.Getenv("SOAK_LOG"))
	began := time.Now()
	plan := wanted(t, uint64(seed), jobs)
	s.planned = len(plan)
	s.do(plan, limit)
	s.report(time.Since(began))
}

// wanted returns the jobs of a run. Of each 300 jobs, the slow ones come first, so that the test does not wait for
// them at the end.
func wanted(t *testing.T, seed uint64, jobs int) []plannedJob {
	t.Helper()
	var all []plannedJob
	if only := os.Getenv("SOAK_ONLY"); only != "" {
		for _, text := range strings.Split(only, ",") {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatalf("SOAK_ONLY is %q: give numbers of jobs, with commas", only)
			}
			all = append(all, planned(seed, n))
		}
		return all
	}
	const block = 300
	for first := 0; first < jobs; first += block {
		for _, slow := range []bool{true, false} {
			for n := first; n < min(first+block, jobs); n++ {
				if j := planned(seed, n); j.fault.slow == slow {
					all = append(all, j)
				}
			}
		}
	}
	return all
}

// The nodes are of two kinds. A shared node runs several jobs side by side. A job that takes a node down, or drains
// it, has a node of the second kind to itself. One more node, the last one, has shards: see share_test.go.
//
// SOAK_WIDE (1, up to 4) multiplies the number of nodes, for a machine with many cores. Several soaks can run side by
// side if each has its own SOAK_NAME.
var (
	sharedNodes = 3 * wide()
	aloneNodes  = 4 * wide()
)

// sideBySide is the number of jobs that run on a shared node at the same time.
const sideBySide = 5

func wide() int {
	n, _ := strconv.Atoi(os.Getenv("SOAK_WIDE"))
	return max(1, min(n, 4))
}

// soak is one run of the test.
type soak struct {
	*e2e.Cluster
	seed     uint64
	planned  int
	folder   string            // for the output of the ranks
	policies map[string]string // by node
	queue    *queue
	began    time.Time
	metrics  string         // the folder of the metrics' files
	attacks  sync.WaitGroup // attacks that go on
	judging  sync.RWMutex   // held for reading while neighbours are judged, and by attacks that would harm them

	mutex     sync.Mutex
	raw       io.Writer
	done      map[string]int // jobs by fault
	judged    int            // neighbours that were checked
	failed    map[string]int // failures by kind
	late      int            // faults that came too late
	shards    int            // pairs of jobs of gres/shard
	restarted int            // jobs started again, because Slurm had aborted a step by mistake
	repaired  int            // drained nodes that were resumed, with or without a reason for the drain
	given     int            // jobs as Slurm counts them
	oldest    time.Duration  // the greatest age of a file of metrics
	stuck     int            // the most processes of guards that waited for a user's file system
}

// The kinds of failures, as the report names them.
const (
	left        = "left behind"
	drained     = "false drains" // those of Slurm itself
	drainedByUs = "drains by prolog or epilog"
	rootLeft    = "root's processes left"
	lost        = "neighbours lost to a cancelled rank"
	wrongEnd    = "jobs that did not end as they should"
	outsideMPS  = "ranks without MPS"
)

func newSoak(t *testing.T, seed uint64, limit time.Duration) *soak {
	t.Helper()
	t.Parallel()
	user := e2e.NeedSlurm(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit+jobLimit)
	t.Cleanup(cancel)
	c := &e2e.Cluster{T: t, Ctx: ctx, User: user, Top: e2e.PublicDir(t), TestNodes: map[string]e2e.Node{}}
	s := &soak{Cluster: c, seed: seed, folder: filepath.Join(c.Top, "out"), done: map[string]int{}, failed: map[string]int{}, policies: map[string]string{}}
	s.metrics = e2e.PublicDirIn(t, "/var/lib") // mpsctl metrics writes below no folder in which users may make files
	if err := errors.Join(os.Mkdir(s.folder, 0o755), os.Chown(s.folder, int(e2e.UID), int(e2e.GID))); err != nil {
		t.Fatal(err)
	}
	o := s.options()
	for i := range o.Nodes {
		name := fmt.Sprintf("%s%d", o.Prefix, i+1)
		c.TestNodes[name] = soakTestNode(c, name, []string{"job", "gpu"}[i%2])
		s.keepPolicy(name)
	}
	o.Prolog, o.Epilog, o.TaskProlog = c.Hook("prolog"), c.Hook("epilog"), c.Hook("task-prolog")
	c.Hook("mpirun-wrap")
	s.recordPid("prolog")
	s.recordPid("epilog")
	s.start(o)
	for _, p := range c.TestNodes {
		s.showDevices(p)
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
	s.T.Cleanup(func() {
		if err := s.Stop(); err != nil {
			s.T.Error(err)
		}
	})
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

// keepPolicy makes a node keep a copy of its policy. The node uses the copy when the policy cannot be read.
func (s *soak) keepPolicy(name string) {
	s.T.Helper()
	p := s.TestNodes[name]
	s.policies[name] = e2e.Read(s.T, p.Paths().Policy())
	if result := p.Ctl("policy", "apply", p.Paths().Policy()); result.Code != 0 {
		s.T.Fatalf("mpsctl policy apply: %+v", result)
	}
}

// showDevices links the device files of the GPUs and of the memory driver below the root of a test node.
func (s *soak) showDevices(p e2e.Node) {
	s.T.Helper()
	if err := e2e.LinkAll(filepath.Join(s.Dir(), "dev"), p.Paths().Devices()); err != nil {
		s.T.Fatal(err)
	}
}

// recordPid makes a hook write its pid into a file. The shell becomes the binary, so the pid stays the same.
func (s *soak) recordPid(program string) {
	path := filepath.Join(s.Top, program)
	record := fmt.Sprintf("\necho $$ >%s/$SLURM_JOB_ID.%s\nexec ", s.folder, program)
	if err := node.WriteProgram(path, []byte(strings.Replace(e2e.Read(s.T, path), "\nexec ", record, 1))); err != nil {
		s.T.Fatal(err)
	}
}

// logTo makes the soak write a line for each job into a file.
func (s *soak) logTo(path string) {
	s.raw = io.Discard
	if path == "" {
		return
	}
	file, err := os.Create(path)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { file.Close() })
	s.raw = file
	fmt.Fprintln(file, "# seconds since the start, node, the job and its fault, its duration, the states of the job and of the node in Slurm, more")
}

// do runs the jobs of the plan until all have run or the time is up.
func (s *soak) do(plan []plannedJob, limit time.Duration) {
	ctx, cancel := context.WithTimeout(s.Ctx, limit)
	defer cancel()
	s.began = time.Now()
	s.queue = s.watch()
	shared, alone := make(chan plannedJob), make(chan plannedJob)
	var all sync.WaitGroup
	nodes := s.Nodes()
	last := len(nodes) - 1
	for i, name := range nodes[:last] {
		work, workers := shared, sideBySide
		if i >= sharedNodes {
			work, workers = alone, 1
		}
		n := &soakNode{soak: s, name: name, testNode: s.TestNodes[name], work: work}
		for range workers {
			all.Go(n.run)
		}
	}
	var feeders sync.WaitGroup
	for _, kind := range []struct {
		alone bool
		into  chan plannedJob
	}{{false, shared}, {true, alone}} {
		feeders.Go(func() {
			defer close(kind.into)
			for _, j := range plan {
				if j.fault.alone != kind.alone {
					continue
				}
				select {
				case kind.into <- j:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	ended := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { s.share(nodes[last], ended) })
	for _, name := range nodes[:sharedNodes] {
		beside.Go(func() { s.measure(name, ended) })
	}
	feeders.Wait()
	all.Wait()
	close(ended)
	beside.Wait()
	s.attacks.Wait()
	s.queue.stop()
	for _, process := range s.rootsLeft() {
		s.wrong(plannedJob{number: -1}, rootLeft, process)
	}
}
