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
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// cluster is a real Slurm whose hooks are the production binaries. Every node has a stage of its own, so that nodes that
// share this machine share nothing else.
type cluster struct {
	*lab.Cluster
	t      *testing.T
	ctx    context.Context
	user   lab.User
	dir    string
	stages map[string]play // by the node's name
}

// gpusOfANode are H200s that differ from what is on other nodes by nothing: a job on one node must not see another's.
var gpusOfANode = []node.Model{node.H200, node.H200, node.H200, node.H200}

func newCluster(t *testing.T, policy string, o lab.Options) *cluster {
	t.Helper()
	t.Parallel()
	printRerun(t)
	user := needSlurm(t)
	c := &cluster{t: t, user: user, dir: publicDir(t), stages: map[string]play{}}
	for _, name := range names(t, o) {
		c.stages[name] = playIn(t, filepath.Join(c.dir, name), policy, gpusOfANode...)
		c.ctx = c.stages[name].ctx
	}
	o.Bundle = os.Getenv("SLURM_BUNDLE")
	o.Dir, o.GPUs, o.Features = filepath.Join(c.dir, "lab"), len(gpusOfANode), "mps,a100"
	for i, line := range o.Extra {
		o.Extra[i] = strings.ReplaceAll(line, "%D", o.Dir)
	}
	o.GresConf = strings.ReplaceAll(o.GresConf, "%D", o.Dir)
	o.Prolog, o.Epilog, o.TaskProlog = c.hook("prolog"), c.hook("epilog"), c.hook("task-prolog")
	c.hook("mpirun-wrap")
	var err error
	if c.Cluster, err = lab.Start(c.ctx, o); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.stages { // the GPUs' device files, which tasks may be kept from
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

// linkAll puts links to the files of a folder into another, in the place of what is there.
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

// needSlurm skips a test where there is no Slurm, or fails it where REQUIRE_LAB says that there must be one, and returns
// the user of its jobs.
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

// hook is a script that runs a binary on the stage of the node that it finds itself on.
func (c *cluster) hook(program string) []string {
	var bin string
	for _, s := range c.stages {
		bin = s.Bin
	}
	path := filepath.Join(c.dir, program)
	// MPICH gives its ranks the first node's SLURMD_NODENAME on every node, so a node that has its own host name goes by that.
	script := fmt.Sprintf("#!/bin/sh\nhere=%s/$(/bin/hostname)\n[ -d $here ] || here=%[1]s/$SLURMD_NODENAME\n", c.dir)
	if program == "mpirun-wrap" { // slurmd gives its scripts no such variable, and they need none
		script += "LD_LIBRARY_PATH=$here/sim/lib\nexport LD_LIBRARY_PATH\n"
	}
	script += fmt.Sprintf("exec %s/%s --root $here/root \"$@\"\n", bin, program)
	if err := node.WriteProgram(path, []byte(script)); err != nil {
		c.t.Fatal(err)
	}
	return []string{path}
}

// wrap is a rank's command line: the client that prints what CUDA tells it, through the wrapper.
func (c *cluster) wrap(args string) string {
	return filepath.Join(c.dir, "mpirun-wrap") + " " + c.client() + " " + args
}

func (c *cluster) first() play { return c.stages[c.Nodes()[0]] }

func (c *cluster) client() string { return c.first().Sim.Program("cuda-client") }

func (c *cluster) log() string {
	var all strings.Builder
	for name, s := range c.stages {
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
	// Each job's Open MPI has a folder of its own: beside one that ends it may find the one they share gone (seen on 4.1).
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

// quiet waits until nothing of any job is left, holds that the nodes are not drained, and says what stays.
func (c *cluster) quiet() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, 20*time.Second)
	defer cancel()
	for name, s := range c.stages {
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

// counts are the SMs that the ranks' CUDA reported, in order.
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

// What each way of starting ranks gives them: four ranks on two GPUs, the whole GPU dealt once.
func TestRanksUnderSlurm(t *testing.T) {
	c := newCluster(t, testnode.Default("overlap = 1"), lab.Options{PrologFlags: "Alloc", SameName: true})
	want := []int{66, 66, 66, 66}
	for _, launch := range []struct{ name, command string }{
		{"srun", "srun -n4"},
		{"srun pmi2", "srun --mpi=pmi2 -n4"},
		{"srun pmix", "srun --mpi=pmix -n4"},
		{"mpirun of Open MPI", "mpirun.openmpi -np 4"},
		{"mpiexec of MPICH", "mpiexec.hydra -n 4"},
	} {
		t.Run(launch.name, func(t *testing.T) {
			id := c.batch(launch.command+" "+c.wrap("info"), "-n4", "--gres=gpu:2")
			job := c.ended(id)
			if got := counts(t, c.output(id)); !slices.Equal(got, want) {
				t.Errorf("SMs %v, want %v: %+v\n%s\n%s", got, want, job, c.output(id), c.log())
			}
		})
	}
	t.Run("srun alone", func(t *testing.T) {
		result, err := c.Run(c.ctx, c.user, "srun", "-n4", "--gres=gpu:2", "--constraint=mps", "bash", "-c",
			"exec "+c.wrap("info"))
		if got := counts(t, result.Stdout); err != nil || !slices.Equal(got, want) {
			t.Errorf("SMs %v, want %v: %+v, %v", got, want, result, err)
		}
	})
	wrapper := filepath.Join(c.dir, "mpirun-wrap") + " "
	for _, flagged := range []struct {
		name, command, gres string
		want                []int
	}{
		{"two programs in one mpirun", "mpirun.openmpi -np 1 " + wrapper + "--share=60% " + c.client() + " info : -np 3 " + c.wrap("info"), "--gres=gpu:1", []int{18, 18, 18, 78}},
		{"weights", "srun -n4 bash -c 'exec " + wrapper + "--share=weight:$((SLURM_LOCALID+1)) " + c.client() + " info'", "--gres=gpu:1", []int{14, 26, 40, 52}},
		{"a variable for all", "SLURM_MPS_SHARE=overlap:2 srun -n4 " + c.wrap("info"), "--gres=gpu:1", []int{66, 66, 66, 66}},
		{"blocks", "srun -n3 " + wrapper + "--gpu=block " + c.client() + " info", "--gres=gpu:2", []int{66, 66, 132}},
		{"a GPU for each task", "srun -n4 " + c.wrap("info"), "--gpus-per-task=1", []int{132, 132, 132, 132}},
	} {
		t.Run(flagged.name, func(t *testing.T) {
			id := c.batch(flagged.command, "-n4", flagged.gres)
			c.ended(id)
			if got := counts(t, c.output(id)); !slices.Equal(got, flagged.want) {
				t.Errorf("SMs %v, want %v:\n%s", got, flagged.want, c.output(id))
			}
		})
	}
	t.Run("the task prolog's placement without the wrapper", func(t *testing.T) {
		id := c.batch("srun -n4 "+c.client()+" info", "-n4", "--gres=gpu:2")
		c.ended(id)
		if got := counts(t, c.output(id)); !slices.Equal(got, want) {
			t.Errorf("SMs %v, want %v:\n%s", got, want, c.output(id))
		}
	})
	c.quiet()
}

func TestAnAllocationWithoutAStep(t *testing.T) {
	for _, flags := range []string{"Alloc", ""} {
		t.Run("PrologFlags="+flags, func(t *testing.T) {
			c := newCluster(t, "", lab.Options{PrologFlags: flags})
			result, err := c.Run(c.ctx, c.user, "salloc", "--gres=gpu:1", "--constraint=mps", "true")
			if err != nil || result.Exit != 0 {
				t.Fatalf("%+v, %v", result, err)
			}
			c.quiet()
		})
	}
}

func TestAnArrayAndJobsSideBySide(t *testing.T) {
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc"})
	array := c.batch("srun -n2 "+c.wrap("info"), "-n2", "--gres=gpu:1", "--array=0-3")
	alone := c.batch("srun -n2 "+c.wrap("info"), "-n2", "--gres=gpu:1")
	c.ended(array)
	c.ended(alone)
	c.quiet()
	if got := counts(t, c.output(array)); len(got) != 8 {
		t.Errorf("ranks of the array: %v\n%s", got, c.output(array))
	}
	if got := counts(t, c.output(alone)); len(got) != 2 {
		t.Errorf("ranks of the job: %v\n%s", got, c.output(alone))
	}
}

func TestAJobWithoutMPSUnderSlurm(t *testing.T) {
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc"})
	result, err := c.Run(c.ctx, c.user, "srun", "--gres=gpu:1", filepath.Join(c.dir, "mpirun-wrap"), "true")
	want := "cannot find ticket of job"
	if err != nil || result.Exit != 125 || !strings.Contains(result.Stderr, want) {
		t.Errorf("%+v, %v: want 125 and %q", result, err, want)
	}
	result, err = c.Run(c.ctx, c.user, "srun", "--gres=gpu:1", "true")
	if err != nil || result.Exit != 0 {
		t.Errorf("%+v, %v", result, err)
	}
	c.quiet()
}

// A user who forgets the GPU is told so by the wrapper, and no node is drained.
func TestAMistakeOfTheUsersDrainsNothing(t *testing.T) {
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc"})
	result, err := c.Run(c.ctx, c.user, "srun", "--constraint=mps", filepath.Join(c.dir, "mpirun-wrap"), "true")
	want := "has no GPU on node n1: submit it with --gres=gpu:N"
	if err != nil || result.Exit != 125 || !strings.Contains(result.Stderr, want) {
		t.Errorf("%+v, %v: want 125 and %q", result, err, want)
	}
	c.quiet()
}

func TestACancelledJob(t *testing.T) {
	c := newCluster(t, testnode.Default(`drain_grace = "1s"`), lab.Options{PrologFlags: "Alloc"})
	id := c.batch("srun -n4 "+c.wrap("spin -ms 5 -for 60"), "-n4", "--gres=gpu:2")
	c.running(id)
	if result, err := c.Run(c.ctx, c.user, "scancel", strconv.Itoa(id)); err != nil || result.Exit != 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	c.ended(id)
	c.quiet()
}

// running waits until the job's ranks say that they run on their GPUs.
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

// A requeued job starts when its old credential has expired, after two minutes by default. Told to start at once it gets
// no second prolog (seen on 22.05) and its wrapper refuses, so the credential is made short here, not the wait.
func TestARequeuedJob(t *testing.T) {
	o := lab.Options{PrologFlags: "Alloc"}
	o.Extra = []string{"AuthInfo=socket=%D/run/munge.socket,cred_expire=5"}
	c := newCluster(t, testnode.Default(`drain_grace = "1s"`), o)
	id := c.batch("if [ $SLURM_RESTART_COUNT ]; then srun -n4 "+c.wrap("info")+"; else srun -n4 "+c.wrap("spin -ms 5 -for 60")+"; fi",
		"-n4", "--gres=gpu:2", "--requeue", "--open-mode=append")
	c.running(id)
	if result, err := c.Run(c.ctx, lab.User{}, "scontrol", "requeue", strconv.Itoa(id)); err != nil || result.Exit != 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	if j, err := c.WaitJobUntil(c.ctx, id, func(j lab.Job) bool { return j.State == "COMPLETED" }); err != nil {
		t.Fatalf("%+v, %v\n%s", j, err, c.log())
	}
	c.quiet()
	if got := counts(t, c.output(id)); len(got) != 4 {
		t.Errorf("ranks after the requeue: %v\n%s", got, c.output(id))
	}
}

// slurmd is killed in the middle of a job and comes back: without Alloc the prolog runs again for the running job.
func TestSlurmdKilledInMidJob(t *testing.T) {
	c := newCluster(t, testnode.Default(`drain_grace = "1s"`), lab.Options{})
	id := c.batch("srun -n4 "+c.wrap("spin -ms 5 -for 5"), "-n4", "--gres=gpu:2")
	c.running(id)
	before := c.first().ticket(uint32(id)).Daemons[0].Proc
	if err := c.KillNode("n1"); err != nil {
		t.Fatal(err)
	}
	if err := c.StartNode("n1"); err != nil {
		t.Fatal(err)
	}
	if after := c.first().ticket(uint32(id)).Daemons[0].Proc; after != before || !after.Running() {
		t.Errorf("the daemon was %v and is %v", before, after)
	}
	c.ended(id)
	c.quiet()
}

func TestConstrainedDevices(t *testing.T) {
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc", ConstrainDevices: true})
	id := c.batch("srun -n4 "+c.wrap("info"), "-n4", "--gres=gpu:2")
	c.ended(id)
	if got := counts(t, c.output(id)); len(got) != 4 {
		t.Errorf("ranks %v\n%s", got, c.output(id))
	}
	c.quiet()
}

func TestThreeNodes(t *testing.T) {
	c := newCluster(t, testnode.Default("overlap = 1"), lab.Options{PrologFlags: "Alloc", Nodes: 3, UTSNodes: true})
	for _, launch := range []string{"srun", "mpirun.openmpi"} {
		id := c.batch(launch+" "+c.wrap("info"), "-N3", "--ntasks-per-node=2", "--gres=gpu:1")
		c.ended(id)
		if got := counts(t, c.output(id)); !slices.Equal(got, []int{66, 66, 66, 66, 66, 66}) {
			t.Errorf("%s: ranks %v\n%s\n%s", launch, got, c.output(id), c.log())
		}
		c.quiet()
	}
}
