// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// cutter makes the program cut run a hook. It returns the file that tells cut at which effect it kills the hook's
// next run.
func (c *cluster) cutter(program string) (where string) {
	c.t.Helper()
	cut := filepath.Join(c.dir, "cut")
	if out, err := exec.Command("go", "build", "-o", cut, "github.com/slurm-mps/slurm-mps/site/sim/faultinject/cut").CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	hook, where := filepath.Join(c.dir, program), filepath.Join(c.dir, program+".cut")
	script := strings.Replace(read(c.t, hook), "\nexec ", fmt.Sprintf("\nexec %s %s ", cut, where), 1)
	if err := node.WriteProgram(hook, []byte(script)); err != nil {
		c.t.Fatal(err)
	}
	return where
}

// drained waits until slurmd has drained the node.
func (c *cluster) drained() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, 30*time.Second)
	defer cancel()
	drain := func(state string) bool { return strings.Contains(state, "DRAIN") }
	if _, _, err := c.WaitNode(ctx, "n1", drain); err != nil {
		c.t.Fatalf("%v\n%s", err, c.log())
	}
}

// resumed puts the node back into service and checks that a job runs on it.
func (c *cluster) resumed() {
	c.t.Helper()
	if err := c.Resume(c.ctx, "n1"); err != nil {
		c.t.Fatal(err)
	}
	id := c.batch("srun -n4 "+c.wrap("info"), "-n4", "--gres=gpu:2")
	if job := c.ended(id); len(counts(c.t, c.output(id))) != 4 {
		c.t.Errorf("%+v: %s\n%s", job, c.output(id), c.log())
	}
	c.quiet()
}

// slurmd drains a node whose prolog was killed, holds the job and runs the epilog. The node is then quiet, and an
// admin only has to resume it.
func TestAPrologKilledUnderSlurm(t *testing.T) {
	joinSweep(t, "points")
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc"})
	where := c.cutter("prolog")
	for _, text := range sample(t, []string{"/claims/", "compute_mode", "nvidia-cuda-mps-control -d", "start_server", "/tickets/"}, 2) {
		t.Run(filepath.Base(text), func(t *testing.T) {
			c := c.again(t)
			c.first().write(where, text)
			id := c.batch("srun -n4 "+c.wrap("info"), "-n4", "--gres=gpu:2")
			c.drained()
			c.empty()
			if _, err := c.WaitJobUntil(c.ctx, id, lab.Job.Held); err != nil {
				t.Error(err)
			}
			if result, err := c.Run(c.ctx, lab.User{}, "scancel", strconv.Itoa(id)); err != nil || result.Exit != 0 {
				t.Errorf("%+v, %v", result, err)
			}
			c.resumed()
		})
	}
}

// empty waits until nothing of any job is left.
func (c *cluster) empty() {
	c.t.Helper()
	for left := c.first().left(); len(left) > 0; left = c.first().left() {
		if !site.Sleep(c.ctx, 20*time.Millisecond) {
			c.t.Fatalf("left behind: %q\n%s", left, c.log())
		}
	}
}

// slurmd drains a node whose epilog was killed. The lease names what is not undone, and the command that an admin
// runs finishes the work.
func TestAnEpilogKilledUnderSlurm(t *testing.T) {
	joinSweep(t, "points")
	c := newCluster(t, "", lab.Options{PrologFlags: "Alloc"})
	where := c.cutter("epilog")
	for _, text := range sample(t, []string{"/tickets/", "quit", "compute_mode", "/claims/", "/leases/"}, 2) {
		t.Run(filepath.Base(text), func(t *testing.T) {
			c := c.again(t)
			c.first().write(where, text)
			id := c.batch("srun -n4 "+c.wrap("info"), "-n4", "--gres=gpu:2")
			c.drained()
			p := c.first()
			p.t = t
			p.must(0, p.job(uint32(id), "0,1"), "epilog")
			c.empty()
			c.resumed()
		})
	}
}
