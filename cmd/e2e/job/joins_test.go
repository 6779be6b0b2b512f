// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// Two jobs of one user share a daemon only if they get the same from it. In each order, each job has a daemon with its
// own rule's ceiling, which binds a rank that sets a larger percentage behind the wrapper, and a guard if its rule
// gives one.
//
// Contract: S3, D4
func TestAJobGetsWhatItsRuleGrants(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		first, second   string // the options of two jobs, with a quarter of the GPU each
		ceilings, holds [2]string
		share           bool
	}{
		{"the same", "", "", [2]string{"100.0", "100.0"}, [2]string{"30s", "30s"}, true},
		{"another share", "", "share=25%", [2]string{"100.0", "100.0"}, [2]string{"30s", "30s"}, true},
		{"another ceiling", "", "ceiling=20", [2]string{"100.0", "20.0"}, [2]string{"30s", "30s"}, false},
		{"another hold", "", "hold=0s", [2]string{"100.0", "100.0"}, [2]string{"30s", "0s"}, false},
		{"another end", "", "drain_grace=1s", [2]string{"100.0", "100.0"}, [2]string{"30s", "30s"}, false},
	} {
		for order, options := range [][2]string{{c.first, c.second}, {c.second, c.first}} {
			t.Run(fmt.Sprintf("%s, order %d", c.name, order), func(t *testing.T) {
				p := newTestNode(t, strings.Replace(testnode.Default(`share_gpu = "user"`, `share = "none"`),
					"  grant {", `  allow = ["share", "ceiling", "hold", "drain_grace"]`+"\n  grant {", 1), node.H200, node.H200)
				p.sharesGPUs(shares[1].gres)
				var jobs []testnode.Job
				for i := range options {
					jobs = append(jobs, p.Job(uint32(7+i), "0"))
					jobs[i].Extra = []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25", "SPANK_MPS=" + options[i]}
					p.Open(jobs[i])
				}
				must.Equal(t, "the jobs share a daemon", p.Ticket(7).Joined == p.Ticket(8).Joined, c.share)
				for i, job := range jobs {
					p.serves(job, c.ceilings[(i+order)%2], c.holds[(i+order)%2])
				}
				p.Must(0, jobs[0], "epilog")
				p.serves(jobs[1], c.ceilings[(1+order)%2], c.holds[(1+order)%2])
				p.Close(jobs[1])
			})
		}
	}
}

// A shared lease of an earlier version does not tell what its daemon is made from. No job joins it, and the epilogs of
// its members close it.
//
// Contract: R10, S3
func TestASharedLeaseOfAnEarlierVersion(t *testing.T) {
	p := newTestNode(t, testnode.Default(`share_gpu = "user"`), node.H200, node.H200)
	p.sharesGPUs(shares[1].gres)
	var jobs []testnode.Job
	for id := uint32(7); id <= 9; id++ {
		job := p.Job(id, "0")
		job.Extra = []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}
		if jobs = append(jobs, job); id == 9 { // jobs 7 and 8 are from before the upgrade
			p.older(7, map[string]any{"drain_grace": "10s", "keep_logs": "never", "pause": "5s", "clients": 48})
			p.older(p.Ticket(7).Joined, nil)
		}
		p.Open(job)
	}
	old := p.Ticket(7)
	if p.Ticket(8).Joined != old.Joined || p.Ticket(9).Joined == old.Joined {
		t.Errorf("jobs 7, 8 and 9 have daemons %d, %d and %d", old.Joined, p.Ticket(8).Joined, p.Ticket(9).Joined)
	}
	for i, job := range jobs {
		p.Must(0, job, "epilog")
		if runs := old.Daemons[0].Proc.Running(); runs != (i == 0) {
			t.Errorf("after the epilog of job %d the daemon of jobs 7 and 8 runs: %t", job.ID, runs)
		}
	}
	p.Clean()
}

// older gives a lease the form that it had before it listed its settings.
func (p testNode) older(id uint32, add map[string]any) {
	p.T.Helper()
	path := filepath.Join(p.Paths().Run(), "leases", fmt.Sprintf("%d.json", id))
	l := map[string]any{}
	err := json.Unmarshal([]byte(e2e.Read(p.T, path)), &l)
	for _, name := range []string{"limits", "control_program", "nvml_library", "usage_interval"} {
		delete(l, name)
	}
	maps.Copy(l, add)
	content, failed := json.Marshal(l)
	must.OK(p.T, errors.Join(err, failed))
	p.Rewrite(path, string(content))
}

// serves checks the ceiling and the guard that a job really has.
func (p testNode) serves(job testnode.Job, ceiling, hold string) {
	p.T.Helper()
	shared := p.Lease(p.Ticket(job.ID).Joined)
	ask := p.AsUser(job.ID, []string{p.Sim.Program("nvidia-cuda-mps-control")})
	ask.Env = append(ask.Env, "CUDA_MPS_PIPE_DIRECTORY="+shared.Daemons[0].PipeDir)
	ask.Stdin = strings.NewReader("get_default_active_thread_percentage\n")
	if out, err := ask.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != ceiling {
		p.T.Errorf("the daemon of job %d has ceiling %s, %v, want %s", job.ID, out, err, ceiling)
	}
	if guarded := shared.Guard.Running(); guarded != (hold != "0s") || time.Duration(shared.Hold).String() != hold {
		p.T.Errorf("job %d has a guard: %t, hold %v, want %s", job.ID, guarded, time.Duration(shared.Hold), hold)
	}
	percent := must.Get(policy.ParsePercent(ceiling[:len(ceiling)-2]))(p.T)
	own := p.Command("mpirun-wrap", "env", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", p.CudaClient(), "info")
	want := fmt.Sprintf("sm=%d", policy.GPU{SMs: 132, SMsPerTPC: 2}.SMsAt(percent))
	if out, err := p.AsUser(job.ID, own).CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
		p.T.Errorf("a rank of job %d that asks for the whole GPU prints %s, %v, want %s", job.ID, out, err, want)
	}
}
