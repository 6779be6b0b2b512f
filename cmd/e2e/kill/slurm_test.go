// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"context"
	"fmt"
	"os/exec"
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

// cutter makes the program cut run a hook. It returns the file that tells cut at which effect it kills the hook's
// next run.
func (c *cluster) cutter(program string) (where string) {
	c.T.Helper()
	cut := filepath.Join(c.Top, "cut")
	e2e.Runs(c.T, exec.Command("go", "build", "-o", cut, "github.com/slurm-mps/slurm-mps/site/sim/faultinject/cut"))
	hook, where := filepath.Join(c.Top, program), filepath.Join(c.Top, program+".cut")
	script := strings.Replace(e2e.Read(c.T, hook), "\nexec ", fmt.Sprintf("\nexec %s %s ", cut, where), 1)
	must.OK(c.T, node.WriteProgram(hook, []byte(script)))
	return where
}

// drained waits until slurmd has drained the node.
func (c *cluster) drained() {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.Ctx, 30*time.Second)
	defer cancel()
	drain := func(state string) bool { return strings.Contains(state, "DRAIN") }
	if _, _, err := c.WaitNode(ctx, "n1", drain); err != nil {
		c.T.Fatalf("%v\n%s", err, c.Log())
	}
}

// resumed puts the node back into service and checks that a job runs on it.
func (c *cluster) resumed() {
	c.T.Helper()
	must.OK(c.T, c.Resume(c.Ctx, "n1"))
	id := c.Batch("srun -n4 "+c.Wrap("info"), "-n4", "--gres=gpu:2")
	if job := c.Ended(id); len(e2e.SMCounts(c.T, c.Output(id))) != 4 {
		c.T.Errorf("%+v: %s\n%s", job, c.Output(id), c.Log())
	}
	c.Quiet()
}

// slurmd drains a node whose prolog was killed, holds the job and runs the epilog. The node is then quiet, and an
// admin only has to resume it.
func TestAPrologKilledUnderSlurm(t *testing.T) {
	e2e.JoinSweep(t, "points")
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc"})
	where := c.cutter("prolog")
	for _, text := range sample(t, []string{"/leases/", "compute_mode", "nvidia-cuda-mps-control -d", "start_server", "/tickets/"}, 2) {
		t.Run(filepath.Base(text), func(t *testing.T) {
			c := &cluster{c.Again(t)}
			c.First().Write(where, text)
			id := c.Batch("srun -n4 "+c.Wrap("info"), "-n4", "--gres=gpu:2")
			c.drained()
			c.empty()
			if _, err := c.WaitJobUntil(c.Ctx, id, lab.Job.Held); err != nil {
				t.Error(err)
			}
			c.Does(lab.User{}, "scancel", strconv.Itoa(id))
			c.resumed()
		})
	}
}

// empty waits until nothing of any job is left.
func (c *cluster) empty() {
	c.T.Helper()
	for left := c.First().Leftovers(); len(left) > 0; left = c.First().Leftovers() {
		if !wait.Sleep(c.Ctx, 20*time.Millisecond) {
			c.T.Fatalf("left behind: %q\n%s", left, c.Log())
		}
	}
}

// slurmd drains a node whose epilog was killed. The lease names what is not undone, and the command that an admin
// runs finishes the work.
func TestAnEpilogKilledUnderSlurm(t *testing.T) {
	e2e.JoinSweep(t, "points")
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc"})
	where := c.cutter("epilog")
	for _, text := range sample(t, []string{"/tickets/", "quit", "compute_mode", "/leases/"}, 2) {
		t.Run(filepath.Base(text), func(t *testing.T) {
			c := &cluster{c.Again(t)}
			c.First().Write(where, text)
			id := c.Batch("srun -n4 "+c.Wrap("info"), "-n4", "--gres=gpu:2")
			c.drained()
			p := testNode{c.First()}
			p.T = t
			p.Must(0, p.Job(uint32(id), "0,1"), "epilog")
			c.empty()
			c.resumed()
		})
	}
}
