// SPDX-License-Identifier: Apache-2.0

package own_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// cluster is a real Slurm. Its jobs do not ask for MPS, so no prolog starts a daemon.
type cluster struct {
	*e2e.Cluster
	nodes map[string]testNode
	rank  string // the user's script of a rank under --own
}

func newCluster(t *testing.T, o lab.Options) *cluster {
	t.Helper()
	o.PrologFlags = "Alloc"
	c := &cluster{Cluster: e2e.NewCluster(t, "", o), nodes: map[string]testNode{}}
	for name, p := range c.TestNodes {
		n := testNode{Node: p}
		n.install()
		c.nodes[name] = n
	}
	c.rank = filepath.Join(c.Top, "rank")
	script := fmt.Sprintf(`#!/bin/sh
here=%s/$(/bin/hostname)
[ -d $here ] || here=%[1]s/$SLURMD_NODENAME
export PATH=$here/sim/bin:/usr/bin:/bin LD_LIBRARY_PATH=$here/sim/lib TMPDIR=$here/t
exec $here/home/mpirun-wrap --own --root $here/root "$@"
`, c.Top)
	must.OK(t, node.WriteProgram(c.rank, []byte(script)))
	return c
}

// run runs a command of the user, such as srun, and checks its exit code.
func (c *cluster) run(code int, line ...string) lab.Result {
	c.T.Helper()
	ctx, cancel := e2e.Limited()
	defer cancel()
	result, err := c.Run(ctx, c.User, line[0], line[1:]...)
	must.Hold(c.T, err == nil && result.Exit == code,
		"%q ends with %d, want %d: %v\n%s%s", line, result.Exit, code, err, result.Stdout, result.Stderr)
	return result
}

// clean checks that nothing is left on any node, and that no rank has computed without MPS.
func (c *cluster) clean() {
	c.T.Helper()
	for _, n := range c.nodes {
		n.T = c.T
		n.clean()
	}
	c.Quiet()
}

// plain submits a script that does not ask for MPS, and waits for its end.
func (c *cluster) plain(script string, args ...string) (lab.Job, string) {
	c.T.Helper()
	id := c.Batch(script, append(args, "--constraint=")...)
	job := c.Ended(id)
	return job, c.Output(id)
}

// The same script as on a machine without Slurm: srun, several steps, launchers, a batch script's loop, and two nodes.
func TestOwnUnderSlurm(t *testing.T) {
	c := newCluster(t, lab.Options{Nodes: 2, UTSNodes: true})
	client := c.Client() + " info"
	four := []int{66, 66, 66, 66}
	for _, l := range []struct {
		name, script string
		args         []string
		ranks        int
	}{
		{"srun", "srun " + c.rank + " --share=even " + client, []string{"-n4", "--gres=gpu:2"}, 4},
		{"two nodes", "srun " + c.rank + " --share=even " + client, []string{"-N2", "--ntasks-per-node=2", "--gres=gpu:1"}, 4},
		{"steps at once", "srun --exact -n2 --gres=gpu:1 " + c.rank + " --share=even " + client + " & srun --exact -n2 --gres=gpu:1 " + c.rank +
			" --share=even " + client + "; wait", []string{"-n4", "--gres=gpu:2"}, 4},
		{"Open MPI", "mpirun.openmpi -np 4 " + c.rank + " --share=even " + client, []string{"-n4", "--gres=gpu:2"}, 4},
		{"MPICH", "mpiexec.hydra -n 4 " + c.rank + " --share=even " + client, []string{"-n4", "--gres=gpu:2"}, 4},
		{"xargs in the batch script", "seq 4 | xargs -P2 -n1 " + c.rank + " --slots=2 --share=even sh -c 'exec " + client + "'", []string{"-n1", "--gres=gpu:1"}, 4},
	} {
		t.Run(l.name, func(t *testing.T) {
			c := &cluster{c.Cluster.Again(t), c.nodes, c.rank}
			_, out := c.plain(l.script, l.args...)
			got := e2e.SMCounts(t, out)
			must.Equal(t, fmt.Sprintf("SMs %v:\n%s", got, out), fmt.Sprint(got), fmt.Sprint(four[:l.ranks]))
			c.clean()
		})
	}
	t.Run("sent by Slurm", func(t *testing.T) { (&cluster{c.Cluster.Again(t), c.nodes, c.rank}).sent() })
	t.Run("a GPU for each task", func(t *testing.T) {
		c := &cluster{c.Cluster.Again(t), c.nodes, c.rank}
		result := c.run(125, "srun", "-n2", "--gpus-per-task=1", c.rank, c.Client(), "info")
		if want := "cannot use --own: Slurm gives each task of this step GPUs of its own"; !strings.Contains(result.Stderr, want) {
			t.Errorf("it prints %s", result.Stderr)
		}
		c.clean()
	})
	t.Run("statuses", func(t *testing.T) {
		c := &cluster{c.Cluster.Again(t), c.nodes, c.rank}
		c.run(3, "srun", "-n4", "--gres=gpu:1", c.rank, "sh", "-c", "[ $SLURM_PROCID != 2 ] || exit 3; exec "+client)
		c.run(139, "srun", "-n1", "--gres=gpu:1", c.rank, c.Client(), "spin", "-ms", "20", "-queue", "3", "-for", "9", "-end", "signal:11")
		c.clean()
	})
	t.Run("scancel", func(t *testing.T) {
		c := &cluster{c.Cluster.Again(t), c.nodes, c.rank}
		id := c.Batch("srun "+c.rank+" "+c.Client()+" spin -ms 5 -for 60", "-n4", "--gres=gpu:2", "--constraint=")
		c.Running(id)
		c.run(0, "scancel", strconv.Itoa(id))
		c.Ended(id)
		c.sweepUp()
		c.clean()
	})
}

// sent runs copies of the wrapper that Slurm sends to the node, by srun --bcast and by sbcast with gpu-usage beside it.
// The keeper of a step runs from the same copy as the rank.
func (c *cluster) sent() {
	c.T.Helper()
	n := c.nodes["n1"]
	folder := filepath.Join(n.tmp, "sent")
	one, two := filepath.Join(n.tmp, "sent-wrapper"), filepath.Join(folder, "mpirun-wrap")
	ranks := func(copy string) string {
		return fmt.Sprintf(" --own --root %s --share=even sh -c '"+
			"ls -l /proc/[0-9]*/exe 2>/dev/null | grep -q %s$ && exec %s info'", n.Root, copy, c.Client())
	}
	_, out := c.plain(strings.Join([]string{
		"export PATH=" + filepath.Dir(n.Sim.Program("x")) + ":$PATH TMPDIR=" + n.tmp,
		"export LD_LIBRARY_PATH=" + n.Sim.Libraries(),
		"srun --bcast=" + one + " " + n.wrapper() + ranks(one),
		"srun -n1 mkdir " + folder,
		"sbcast " + n.wrapper() + " " + two,
		"sbcast " + n.Command("gpu-usage")[0] + " " + filepath.Join(folder, "gpu-usage"),
		"srun " + two + ranks(two),
		"cmp " + n.wrapper() + " " + two +
			" && cmp " + n.Command("gpu-usage")[0] + " " + folder + "/gpu-usage && echo same",
	}, "\n"), "-w", "n1", "-n2", "--gres=gpu:1")
	if got := e2e.SMCounts(c.T, out); fmt.Sprint(got) != "[66 66 66 66]" || !strings.Contains(out, "same\n") {
		c.T.Errorf("SMs %v:\n%s", got, out)
	}
	c.clean()
}

// sweepUp makes the user's next start remove what Slurm has left when it killed all processes of a step at once.
func (c *cluster) sweepUp() {
	for _, n := range c.nodes {
		n.T = c.T
		for limit := time.Now().Add(time.Second); len(n.left()) > 0 && time.Now().Before(limit); {
			wait.Sleep(c.Ctx, 10*time.Millisecond)
		}
		if len(n.folders()) > 0 {
			ends(0, n.start(nil, n.wrap("true")...))
		}
	}
}
