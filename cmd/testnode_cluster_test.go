// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// cluster is a real Slurm whose hooks are the production binaries. Every node has its own test node, so that the nodes
// share only this machine.
type cluster struct {
	*lab.Cluster
	t     *testing.T
	ctx   context.Context
	user  lab.User
	dir   string
	nodes map[string]testNode // by the node's name
}

// gpusOfANode are the GPUs of each node. They are the same on every node, because a job on one node must not see the
// GPUs of another.
var gpusOfANode = []node.Model{node.H200, node.H200, node.H200, node.H200}

// newCluster starts a real Slurm with test nodes under a policy. The test stops it.
func newCluster(t *testing.T, policy string, o lab.Options) *cluster {
	t.Helper()
	t.Parallel()
	printRerun(t)
	user := needSlurm(t)
	if o.Dir == "" {
		o.Dir = publicDir(t)
	}
	c := &cluster{t: t, user: user, dir: o.Dir, nodes: map[string]testNode{}}
	for _, name := range names(t, o) {
		c.nodes[name] = testNodeIn(t, filepath.Join(c.dir, name), policy, gpusOfANode...)
		c.ctx = c.nodes[name].ctx
	}
	o.Bundle = os.Getenv("SLURM_BUNDLE")
	o.Dir, o.GPUs, o.Features = filepath.Join(c.dir, "lab"), len(gpusOfANode), "mps,a100"
	for i, line := range o.Extra {
		o.Extra[i] = strings.ReplaceAll(line, "%D", o.Dir)
	}
	o.GresConf = strings.ReplaceAll(o.GresConf, "%D", o.Dir)
	o.Namespace = strings.ReplaceAll(o.Namespace, "%D", o.Dir)
	o.Prolog, o.Epilog, o.TaskProlog = c.hook("prolog"), c.hook("epilog"), c.hook("task-prolog")
	c.hook("mpirun-wrap")
	var err error
	if c.Cluster, err = lab.Start(c.ctx, o); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.nodes { // the device files of the GPUs, because Slurm may constrain tasks to some of them
		if err := linkAll(filepath.Join(o.Dir, "dev"), s.Paths().Devices()); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// again is the same cluster for a subtest.
func (c *cluster) again(t *testing.T) *cluster {
	same := *c
	same.t = t
	return &same
}

// linkAll puts links to the files of a folder into another folder, and replaces the files there.
func linkAll(from, to string) error {
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, file := range files {
		link := filepath.Join(to, file.Name())
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(filepath.Join(from, file.Name()), link); err != nil {
			return err
		}
	}
	return nil
}

// needSlurm returns the user of the jobs. If there is no Slurm, it skips the test. If REQUIRE_LAB says that there
// must be one, it fails the test.
func needSlurm(t *testing.T) lab.User {
	t.Helper()
	needRoot(t)
	if missing := lab.Missing(); len(missing) > 0 && os.Getenv("SLURM_BUNDLE") == "" {
		if os.Getenv("REQUIRE_LAB") != "" {
			t.Fatalf("packages are missing: %q: run make setup", missing)
		}
		t.Skipf("packages are missing: %q: run make setup", missing)
	}
	user, err := lab.EnsureUser("hpc1", uid)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func names(t *testing.T, o lab.Options) []string {
	if o.SameName {
		host, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		short, _, _ := strings.Cut(host, ".")
		return []string{short}
	}
	var list []string
	for n := range max(o.Nodes, 1) {
		list = append(list, fmt.Sprintf("n%d", n+1))
	}
	return list
}

// hook is a script that runs a binary on the test node of its own node.
func (c *cluster) hook(program string) []string {
	var bin string
	for _, s := range c.nodes {
		bin = s.Bin
	}
	path := filepath.Join(c.dir, program)
	// MPICH gives its ranks the first node's SLURMD_NODENAME on every node, so a node with its own host name uses the
	// host name.
	script := fmt.Sprintf("#!/bin/sh\nhere=%s/$(/bin/hostname)\n[ -d $here ] || here=%[1]s/$SLURMD_NODENAME\n", c.dir)
	if program == "mpirun-wrap" { // slurmd sets no such variable for its scripts, and they need none
		script += "LD_LIBRARY_PATH=$here/sim/lib\nexport LD_LIBRARY_PATH\n"
	}
	script += fmt.Sprintf("exec %s/%s --root $here/root \"$@\"\n", bin, program)
	if err := node.WriteProgram(path, []byte(script)); err != nil {
		c.t.Fatal(err)
	}
	return []string{path}
}

// wrap is the command line of a rank. It starts, through the wrapper, the client that prints what CUDA reports.
func (c *cluster) wrap(args string) string {
	return filepath.Join(c.dir, "mpirun-wrap") + " " + c.client() + " " + args
}

// first is the test node of the first node.
func (c *cluster) first() testNode { return c.nodes[c.Nodes()[0]] }

// client is the path of the CUDA client.
func (c *cluster) client() string { return c.first().Sim.Program("cuda-client") }

// log returns the logs of all test nodes.
func (c *cluster) log() string {
	var all strings.Builder
	for name, s := range c.nodes {
		fmt.Fprintf(&all, "--- %s\n%s", name, s.log())
	}
	return all.String()
}

// batch submits a script and returns the job's number.
func (c *cluster) batch(script string, args ...string) int {
	c.t.Helper()
	home, err := c.Home(c.user)
	if err != nil {
		c.t.Fatal(err)
	}
	path := filepath.Join(home, fmt.Sprintf("job%d.sh", time.Now().UnixNano()))
	// Each job's Open MPI has its own folder for temporary files. If two share a folder, one that ends may delete it
	// while the other needs it (seen on 4.1).
	text := "#!/bin/bash\nmkdir -p " + home + "/$SLURM_JOB_ID\nexport TMPDIR=" + home + "/$SLURM_JOB_ID LD_LIBRARY_PATH=" + c.first().Sim.Libraries() + "\n" + script + "\n"
	if err := node.WriteProgram(path, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
	id, err := c.Submit(c.ctx, c.user, append(append([]string{"--constraint=mps", "-o", home + "/%A.%a.out"}, args...), path)...)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// output is what a batch job printed.
func (c *cluster) output(id int) string {
	c.t.Helper()
	home, err := c.Home(c.user)
	if err != nil {
		c.t.Fatal(err)
	}
	paths, _ := filepath.Glob(fmt.Sprintf("%s/%d.*.out", home, id))
	var all strings.Builder
	for _, path := range paths {
		all.WriteString(read(c.t, path))
	}
	return all.String()
}

// ended waits for a job and for its epilog on every node.
func (c *cluster) ended(id int) lab.Job {
	c.t.Helper()
	job, err := c.WaitJob(c.ctx, id)
	if err != nil {
		c.t.Fatalf("%v\n%s", err, c.log())
	}
	return job
}

// running waits until the job's ranks print that they run on their GPUs.
func (c *cluster) running(id int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, 20*time.Second)
	defer cancel()
	for strings.Count(c.output(id), " ready") < 4 {
		if !site.Sleep(ctx, 20*time.Millisecond) {
			c.t.Fatalf("the ranks do not run:\n%s\n%s", c.output(id), c.log())
		}
	}
}

// quiet waits until nothing of any job is left, and reports what remains. It checks that no node is drained.
func (c *cluster) quiet() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, 20*time.Second)
	defer cancel()
	for name, s := range c.nodes {
		for left := s.left(); len(left) > 0; left = s.left() {
			if !site.Sleep(ctx, 20*time.Millisecond) {
				c.t.Fatalf("left behind on %s: %q\n%s", name, left, c.log())
			}
		}
	}
	for _, name := range c.Nodes() {
		state, reason, err := c.NodeState(c.ctx, name)
		if err != nil || strings.Contains(strings.ToLower(state), "drain") {
			c.t.Errorf("node %s is %s: %s, %v", name, state, reason, err)
		}
	}
}

var sms = regexp.MustCompile(`err=0\(cudaSuccess\) sm=(\d+) ndev=1`)

// counts are the SMs that CUDA reported to the ranks, sorted.
func counts(t *testing.T, output string) []int {
	t.Helper()
	var found []int
	for _, m := range sms.FindAllStringSubmatch(output, -1) {
		n, _ := strconv.Atoi(m[1])
		found = append(found, n)
	}
	slices.Sort(found)
	return found
}
