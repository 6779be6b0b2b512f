// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/usage"
	"golang.org/x/sys/unix"
)

// submits submits a script that asks for no MPS.
func (c *cluster) submits(script string, args ...string) int {
	c.T.Helper()
	home := must.Get(c.Home(c.User))(c.T)
	path := filepath.Join(home, "plain.sh")
	text := "#!/bin/bash\nexport LD_LIBRARY_PATH=" + c.First().Sim.Libraries() + "\n" + script + "\n"
	must.OK(c.T, node.WriteProgram(path, []byte(text)))
	return must.Get(c.Submit(c.Ctx, c.User, append(append([]string{"-o", home + "/%A.%a.out"}, args...), path)...))(c.T)
}

// keptReport waits for the report that a job's epilog keeps.
func (c *cluster) keptReport(id int) (r usage.Report) {
	c.T.Helper()
	path := filepath.Join(c.First().Paths().Reports(), strconv.Itoa(id)+".json")
	c.First().Until("the kept report", func() bool {
		var err error
		r, err = usage.Read(path)
		return err == nil
	})
	return r
}

// Under record = "all", a job without the constraint has a report of its two steps on one GPU, and of its second GPU,
// which no process uses. If its recorder is killed, it goes on, and so does the next job on the same GPUs.
//
// Contract: U5
func TestJobsWithoutMPSAreRecorded(t *testing.T) {
	c := newCluster(t, "record = \"all\"\n"+testnode.Default(""), lab.Options{PrologFlags: "Alloc,Contain"})
	c.First().Facts(`usage_interval = "1s"`)
	step := "CUDA_VISIBLE_DEVICES=0 srun -n1 " + c.Client() + " spin -ms 1 -for 4\n"
	id := c.submits(step+step, "--gres=gpu:2", "-n1")
	if job := c.Ended(id); job.State != "COMPLETED" {
		t.Fatalf("%+v\n%s\n%s", job, c.Output(id), c.Log())
	}
	r := c.keptReport(id)
	must.Have(t, r.NoMPS && r.ClientsSeen == 2 && len(r.Clients) == 2 && len(r.GPUs) == 2 && len(r.GPUs[1].Samples) >= 3,
		"%+v", r)
	for _, c := range r.Clients {
		if c.GPU != 0 || c.Program != "cuda-client" || c.Rank != 0 || c.End.IsZero() || c.Exit != "" || c.Ending != "" {
			t.Errorf("%+v", c)
		}
	}
	if r.Clients[0].Step != "0" || r.Clients[1].Step != "1" {
		t.Errorf("steps %q and %q", r.Clients[0].Step, r.Clients[1].Step)
	}
	for _, s := range r.GPUs[1].Samples {
		must.Equal(t, fmt.Sprintf("the second GPU has a process: %+v", s), s.Clients, 0)
	}
	if report := c.First().Ctl("report", strconv.Itoa(id)); report.Code != 0 ||
		!strings.Contains(report.Output, "ran without MPS") {
		t.Errorf("%+v", report)
	}

	id = c.submits(c.Client()+" spin -ms 1 -for 6", "--gres=gpu:4", "-n1")
	var l lease.Lease
	store := lease.OpenReadOnly(c.First().Paths().Run(), e2e.Boot(t))
	c.First().Until("the recorder", func() (found bool) {
		var err error
		l, err = store.Read(uint32(id))
		return err == nil && l.Guard.PID > 0
	})
	must.OK(t, l.Guard.Kill(unix.SIGKILL))
	c.First().Gone(l.Guard)
	if job := c.Ended(id); job.State != "COMPLETED" || !strings.Contains(c.Output(id), " done ") {
		t.Errorf("%+v\n%s\n%s", job, c.Output(id), c.Log())
	}
	cpu := c.submits("true", "-n1")
	if job := c.Ended(cpu); job.State != "COMPLETED" {
		t.Errorf("a job without GPUs: %+v\n%s", job, c.Log())
	}
	withMPS := c.Batch("srun -n2 "+c.Wrap("info"), "--gres=gpu:4", "-n2")
	if job := c.Ended(withMPS); job.State != "COMPLETED" || len(e2e.SMCounts(t, c.Output(withMPS))) != 2 {
		t.Errorf("a job with MPS: %+v\n%s\n%s", job, c.Output(withMPS), c.Log())
	}
	c.Quiet()
}

// The last line of a script puts the job's result into its comment, as docs/user.md says.
func TestAResultInTheComment(t *testing.T) {
	c := newCluster(t, "record = \"all\"\n"+testnode.Default(""), lab.Options{PrologFlags: "Alloc,Contain"})
	c.First().Facts(`usage_interval = "1s"`)
	const recipe = `scontrol update job=$SLURM_JOB_ID comment="$(mpsctl report --line)"`
	must.Hold(t, strings.Contains(e2e.Read(t, "../../../docs/user.md"), recipe), "docs/user.md does not have %s", recipe)
	line := strings.Replace(recipe, "mpsctl", strings.Join(c.First().Command("mpsctl"), " "), 1)
	script := "CUDA_VISIBLE_DEVICES=0 " + c.Client() + " spin -ms 1 -for 3\n" + line + "\nscontrol show job $SLURM_JOB_ID"
	id := c.submits(script, "--gres=gpu:1", "-n1")
	want := "Comment=job " + strconv.Itoa(id) + ": The job ran without MPS"
	if job := c.Ended(id); job.State != "COMPLETED" || !strings.Contains(c.Output(id), want) {
		t.Errorf("%+v\n%s\nwant %s", job, c.Output(id), want)
	}
}
