// SPDX-License-Identifier: Apache-2.0

package e2e

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

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// Cluster is a real Slurm whose hooks are the production binaries. Every node has its own test node, so that the nodes
// share only this machine.
type Cluster struct {
	*lab.Cluster
	T         *testing.T
	Ctx       context.Context
	User      lab.User
	Top       string
	TestNodes map[string]Node // by the node's name
}

// GPUsOfANode are the GPUs of each node. They are the same on every node, because a job on one node must not see the
// GPUs of another.
var GPUsOfANode = []node.Model{node.H200, node.H200, node.H200, node.H200}

// NewCluster starts a real Slurm with test nodes under a policy. The test stops it.
func NewCluster(t *testing.T, policy string, o lab.Options) *Cluster {
	t.Helper()
	t.Parallel()
	printRerun(t)
	user := NeedSlurm(t)
	if o.Dir == "" {
		o.Dir = PublicDir(t)
	}
	c := &Cluster{T: t, User: user, Top: o.Dir, TestNodes: map[string]Node{}}
	for _, name := range names(t, o) {
		c.TestNodes[name] = NodeIn(t, filepath.Join(c.Top, name), policy, GPUsOfANode...)
		c.Ctx = c.TestNodes[name].Ctx
	}
	o.Bundle = os.Getenv("SLURM_BUNDLE")
	o.Dir, o.GPUs, o.Features = filepath.Join(c.Top, "lab"), len(GPUsOfANode), "mps,a100"
	for i, line := range o.Extra {
		o.Extra[i] = strings.ReplaceAll(line, "%D", o.Dir)
	}
	o.GresConf = strings.ReplaceAll(o.GresConf, "%D", o.Dir)
	o.Namespace = strings.ReplaceAll(o.Namespace, "%D", o.Dir)
	o.Prolog, o.Epilog, o.TaskProlog = c.Hook("prolog"), c.Hook("epilog"), c.Hook("task-prolog")
	c.Hook("mpirun-wrap")
	var err error
	if c.Cluster, err = lab.Start(c.Ctx, o); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.TestNodes { // the device files of the GPUs, because Slurm may constrain tasks to some of them
		must.OK(t, LinkAll(filepath.Join(o.Dir, "dev"), s.Paths().Devices()))
	}
	t.Cleanup(func() { must.Note(t, c.Stop()) })
	return c
}

// Again is the same cluster for a subtest.
func (c *Cluster) Again(t *testing.T) *Cluster {
	same := *c
	same.T = t
	return &same
}

// LinkAll puts links to the files of a folder into another folder, and replaces the files there.
func LinkAll(from, to string) error {
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

// NeedSlurm returns the user of the jobs. If there is no Slurm, it skips the test. If REQUIRE_LAB says that there
// must be one, it fails the test.
func NeedSlurm(t *testing.T) lab.User {
	t.Helper()
	NeedRoot(t)
	if missing := lab.Missing(); len(missing) > 0 && os.Getenv("SLURM_BUNDLE") == "" {
		must.Have(t, os.Getenv("REQUIRE_LAB") == "", "packages are missing: %q: run make setup", missing)
		t.Skipf("packages are missing: %q: run make setup", missing)
	}
	return must.Get(lab.EnsureUser(UserName, UID))(t)
}

func names(t *testing.T, o lab.Options) []string {
	if o.SameName {
		host := must.Get(os.Hostname())(t)
		short, _, _ := strings.Cut(host, ".")
		return []string{short}
	}
	var list []string
	for n := range max(o.Nodes, 1) {
		list = append(list, fmt.Sprintf("n%d", n+1))
	}
	return list
}

// Hook is a script that runs a binary on the test node of its own node.
func (c *Cluster) Hook(program string) []string {
	var bin string
	for _, s := range c.TestNodes {
		bin = s.Bin
	}
	path := filepath.Join(c.Top, program)
	// MPICH gives its ranks the first node's SLURMD_NODENAME on every node, so a node with its own host name uses the
	// host name.
	script := fmt.Sprintf("#!/bin/sh\nhere=%s/$(/bin/hostname)\n[ -d $here ] || here=%[1]s/$SLURMD_NODENAME\n", c.Top)
	if program == "mpirun-wrap" { // slurmd sets no such variable for its scripts, and they need none
		script += "LD_LIBRARY_PATH=$here/sim/lib\nexport LD_LIBRARY_PATH\n"
	}
	script += fmt.Sprintf("exec %s/%s --root $here/root \"$@\"\n", bin, program)
	must.OK(c.T, node.WriteProgram(path, []byte(script)))
	return []string{path}
}

// Wrap is the command line of a rank. It starts, through the wrapper, the client that prints what CUDA reports.
func (c *Cluster) Wrap(args string) string {
	return filepath.Join(c.Top, "mpirun-wrap") + " " + c.Client() + " " + args
}

// First is the test node of the first node.
func (c *Cluster) First() Node { return c.TestNodes[c.Nodes()[0]] }

// Client is the path of the CUDA client.
func (c *Cluster) Client() string { return c.First().Sim.Program("cuda-client") }

// Log returns the logs of all test nodes.
func (c *Cluster) Log() string {
	var all strings.Builder
	for name, s := range c.TestNodes {
		fmt.Fprintf(&all, "--- %s\n%s", name, s.Log())
	}
	return all.String()
}

// Batch submits a script and returns the job's number.
func (c *Cluster) Batch(script string, args ...string) int {
	c.T.Helper()
	home := must.Get(c.Home(c.User))(c.T)
	path := filepath.Join(home, fmt.Sprintf("job%d.sh", time.Now().UnixNano()))
	// Each job's Open MPI has its own folder for temporary files. If two share a folder, one that ends may delete it
	// while the other needs it (seen on 4.1).
	text := "#!/bin/bash\nmkdir -p " + home + "/$SLURM_JOB_ID\nexport TMPDIR=" + home +
		"/$SLURM_JOB_ID LD_LIBRARY_PATH=" + c.First().Sim.Libraries() + "\n" + script + "\n"
	must.OK(c.T, node.WriteProgram(path, []byte(text)))
	id, err := c.Submit(c.Ctx, c.User, append(append([]string{"--constraint=mps", "-o", home + "/%A.%a.out"}, args...), path)...)
	must.OK(c.T, err)
	return id
}

// Does runs a command of Slurm's as a user. It must end with 0.
func (c *Cluster) Does(user lab.User, line ...string) lab.Result {
	c.T.Helper()
	result, err := c.Run(c.Ctx, user, line[0], line[1:]...)
	if err != nil || result.Exit != 0 {
		c.T.Fatalf("%q: %+v, %v\n%s", line, result, err, c.Log())
	}
	return result
}

// Output is what a batch job printed.
func (c *Cluster) Output(id int) string {
	c.T.Helper()
	home := must.Get(c.Home(c.User))(c.T)
	paths, _ := filepath.Glob(fmt.Sprintf("%s/%d.*.out", home, id))
	var all strings.Builder
	for _, path := range paths {
		all.WriteString(Read(c.T, path))
	}
	return all.String()
}

// Ended waits for a job and for its epilog on every node.
func (c *Cluster) Ended(id int) lab.Job {
	c.T.Helper()
	ctx, cancel := Limited()
	defer cancel()
	job, err := c.WaitJob(ctx, id)
	if err != nil {
		c.T.Fatalf("%v\n%s", err, c.Log())
	}
	return job
}

// Running waits until the job's ranks print that they run on their GPUs.
func (c *Cluster) Running(id int) {
	c.T.Helper()
	if !Comes(func() bool { return strings.Count(c.Output(id), " ready") >= 4 }) {
		c.T.Fatalf("the ranks do not run:\n%s\n%s", c.Output(id), c.Log())
	}
}

// Quiet waits until nothing of any job is left, and reports what remains. It checks that no node is drained.
func (c *Cluster) Quiet() {
	c.T.Helper()
	for name, s := range c.TestNodes {
		var left []string
		if !Comes(func() bool { left = s.Leftovers(); return len(left) == 0 }) {
			c.T.Fatalf("left behind on %s: %q\n%s", name, left, c.Log())
		}
	}
	for _, name := range c.Nodes() {
		state, reason, err := c.NodeState(c.Ctx, name)
		must.Hold(c.T, err == nil && !strings.Contains(strings.ToLower(state), "drain"),
			"node %s is %s: %s, %v", name, state, reason, err)
	}
}

var sms = regexp.MustCompile(`err=0\(cudaSuccess\) sm=(\d+) ndev=1`)

// SMCounts are the SMs that CUDA reported to the ranks, sorted.
func SMCounts(t *testing.T, output string) []int {
	t.Helper()
	var found []int
	for _, m := range sms.FindAllStringSubmatch(output, -1) {
		n, _ := strconv.Atoi(m[1])
		found = append(found, n)
	}
	slices.Sort(found)
	return found
}
