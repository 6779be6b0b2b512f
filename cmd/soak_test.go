// SPDX-License-Identifier: Apache-2.0

package cmd_test

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
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// Many random jobs run on a real Slurm whose hooks are the production binaries, with a random fault for most of them.
// After every job nothing of it is left, and its node is in service unless there is a reason. The neighbours of an
// ended rank compute on, and every computing client does so under MPS.
//
//	SOAK_JOBS     how many jobs, 50
//	SOAK_SEED     what they are and what befalls them, 1
//	SOAK_MINUTES  ends the soak earlier, which then says how many jobs it has done
//	SOAK_LOG      a file that gets a line for every job
//	SOAK_ONLY     numbers of jobs, "17,18": these alone, to repeat what failed
//
// The jobs of a seed are the same each time; how they meet on the nodes is not.
func TestSoak(t *testing.T) {
	jobs, seed, minutes := number(t, "SOAK_JOBS", 50), number(t, "SOAK_SEED", 1), number(t, "SOAK_MINUTES", 0)
	limit := time.Duration(minutes) * time.Minute
	if minutes == 0 {
		limit = 24 * time.Hour
	}
	s := newSoak(t, uint64(seed), limit)
	s.logTo(os.Getenv("SOAK_LOG"))
	began := time.Now()
	errands := wanted(t, uint64(seed), jobs)
	s.planned = len(errands)
	s.do(errands, limit)
	s.report(time.Since(began))
}

func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s is %q: give a number", variable, text)
	}
	return n
}

// wanted are the errands of a run. The slow ones of each few hundred come first, so that the test does not wait for
// them at the end.
func wanted(t *testing.T, seed uint64, jobs int) []errand {
	t.Helper()
	var all []errand
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
				if e := planned(seed, n); e.fault.slow == slow {
					all = append(all, e)
				}
			}
		}
	}
	return all
}

// Where the jobs run. On a node of the first kind many run side by side; what takes a node down, or drains it, has
// one of the other kind to itself. SOAK_WIDE (1, up to 4) has so many times as many nodes, for a machine of many
// cores; soaks with a SOAK_NAME each run side by side.
var (
	sharedNodes = 3 * wide()
	aloneNodes  = 4 * wide()
)

// The last node has shards. See soak_share_test.go.

const sideBySide = 5

func wide() int {
	n, _ := strconv.Atoi(os.Getenv("SOAK_WIDE"))
	return max(1, min(n, 4))
}

// soak is a run.
type soak struct {
	*cluster
	seed     uint64
	planned  int
	folder   string            // where the ranks' output goes
	policies map[string]string // of each node
	queue    *queue
	began    time.Time

	mutex  sync.Mutex
	raw    io.Writer
	done   map[string]int // errands by fault
	judged int            // neighbours that were looked at
	failed map[string]int // by what is wrong
	late   int            // faults that came to nothing
	shards int            // pairs of jobs of gres/shard
	strays int            // errands begun anew, since Slurm's word to somebody else had ended a step
	// Nodes that were drained, for a reason or for none, and resumed.
	repaired int
	given    int // jobs of Slurm's
}

// What can be wrong, for the report.
const (
	left       = "left behind"
	drained    = "false drains"
	lost       = "neighbours lost to a cancelled rank"
	wrongEnd   = "jobs that did not end as they should"
	outsideMPS = "ranks without MPS"
)

func newSoak(t *testing.T, seed uint64, limit time.Duration) *soak {
	t.Helper()
	t.Parallel()
	user := needSlurm(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit+errandLimit)
	t.Cleanup(cancel)
	c := &cluster{t: t, ctx: ctx, user: user, dir: publicDir(t), stages: map[string]play{}}
	s := &soak{cluster: c, seed: seed, folder: filepath.Join(c.dir, "out"), done: map[string]int{}, failed: map[string]int{}, policies: map[string]string{}}
	if err := errors.Join(os.Mkdir(s.folder, 0o755), os.Chown(s.folder, uid, gid)); err != nil {
		t.Fatal(err)
	}
	o := s.options()
	for i := range o.Nodes {
		name := fmt.Sprintf("%s%d", o.Prefix, i+1)
		c.stages[name] = soakStage(c, name, []string{"job", "gpu"}[i%2])
		s.keepPolicy(name)
	}
	o.Prolog, o.Epilog, o.TaskProlog = c.hook("prolog"), c.hook("epilog"), c.hook("task-prolog")
	c.hook("mpirun-wrap")
	s.tellsPid("prolog")
	s.tellsPid("epilog")
	s.start(o)
	for _, p := range c.stages {
		s.showDevices(p)
	}
	return s
}

// start waits for a soak beside this one, whose nodes have the same names, for a minute at most.
func (s *soak) start(o lab.Options) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	var err error
	if s.Cluster, err = lab.Start(ctx, o); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			s.t.Error(err)
		}
	})
}

// options are those of the cluster. Without control groups Slurm loses what a launcher leaves that it kills.
func (s *soak) options() lab.Options {
	prefix, all := "soak"+os.Getenv("SOAK_NAME"), sharedNodes+aloneNodes+1
	o := lab.Options{Dir: filepath.Join(s.dir, "lab"), Prefix: prefix, Nodes: all, GresOf: map[string]string{fmt.Sprint(prefix, all): "gpu:4,shard:8"}, UTSNodes: true, BootIDs: true,
		ConstrainDevices: true, GPUs: len(gpusOfANode), CPUs: 256, Features: "mps", PrologFlags: "Alloc", Bundle: os.Getenv("SLURM_BUNDLE")}
	for _, line := range quickened {
		o.Extra = append(o.Extra, strings.ReplaceAll(line, "%D", o.Dir))
	}
	return o
}

// quickened are shorter timeouts of Slurm's, because a soak has no time for the usual ones. Its logs contain only
// errors.
var quickened = []string{"AuthInfo=socket=%D/run/munge.socket,cred_expire=10", "KillWait=2", "BatchStartTimeout=1", "MinJobAge=20",
	"SlurmctldDebug=info", "SlurmdDebug=info", "MaxArraySize=100"}

// soakStage is a node. Its logs are kept: they say who was a client.
func soakStage(c *cluster, name, scope string) play {
	policy := testnode.Default(fmt.Sprintf("scope = %q", scope), `drain_grace = "200ms"`, `keep_logs = "always"`)
	p := playIn(c.t, filepath.Join(c.dir, name), policy, gpusOfANode...)
	p.ctx = c.ctx
	p.facts(`prolog_deadline = "20s"`, `epilog_deadline = "20s"`)
	return p
}

// keepPolicy has a node keep its policy for the day when it cannot be read.
func (s *soak) keepPolicy(name string) {
	s.t.Helper()
	p := s.stages[name]
	s.policies[name] = read(s.t, p.Paths().Policy())
	if result := p.ctl("policy", "apply", p.Paths().Policy()); result.Code != 0 {
		s.t.Fatalf("mpsctl policy apply: %+v", result)
	}
}

// showDevices puts the GPUs' device files, and that of the memory driver, below a stage's root.
func (s *soak) showDevices(p play) {
	s.t.Helper()
	if err := linkAll(filepath.Join(s.Dir(), "dev"), p.Paths().Devices()); err != nil {
		s.t.Fatal(err)
	}
}

// tellsPid has a hook write down who it is: the shell becomes the binary, so the pid stays.
func (s *soak) tellsPid(program string) {
	path := filepath.Join(s.dir, program)
	tells := fmt.Sprintf("\necho $$ >%s/$SLURM_JOB_ID.%s\nexec ", s.folder, program)
	if err := node.WriteProgram(path, []byte(strings.Replace(read(s.t, path), "\nexec ", tells, 1))); err != nil {
		s.t.Fatal(err)
	}
}

// logTo has a line written for every job.
func (s *soak) logTo(path string) {
	s.raw = io.Discard
	if path == "" {
		return
	}
	file, err := os.Create(path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { file.Close() })
	s.raw = file
	fmt.Fprintln(file, "# seconds since the start, node, the job and its fault, how long it took, what Slurm says of it and of the node, more")
}

// do does errands until there are no more or the time is up.
func (s *soak) do(errands []errand, limit time.Duration) {
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	s.began = time.Now()
	s.queue = s.watch()
	shared, alone := make(chan errand), make(chan errand)
	var all sync.WaitGroup
	nodes := s.Nodes()
	last := len(nodes) - 1
	for i, name := range nodes[:last] {
		work, workers := shared, sideBySide
		if i >= sharedNodes {
			work, workers = alone, 1
		}
		l := &berth{soak: s, name: name, play: s.stages[name], work: work}
		for range workers {
			all.Go(l.run)
		}
	}
	var feeders sync.WaitGroup
	for _, kind := range []struct {
		alone bool
		into  chan errand
	}{{false, shared}, {true, alone}} {
		feeders.Go(func() {
			defer close(kind.into)
			for _, e := range errands {
				if e.fault.alone != kind.alone {
					continue
				}
				select {
				case kind.into <- e:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	ended := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { s.share(nodes[last], ended) })
	feeders.Wait()
	all.Wait()
	close(ended)
	beside.Wait()
	s.queue.stop()
}
