// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// sharing names the jobs of gres/shard in failures.
var sharing = plannedJob{number: -1, fault: fault{name: "two jobs of gres/shard"}}

// share runs until the soak ends, on a node with shards. Two jobs with a shard each ask for MPS, and each computes
// under a daemon of its own. A third job does not ask for MPS, and computes without. Then the node is as before.
func (s *soak) share(name string, ended <-chan struct{}) {
	for !s.failedTooOften() {
		select {
		case <-ended:
			return
		case <-time.After(2 * time.Second):
		}
		if err := s.shareOnce(name); err != nil {
			s.wrong(sharing, wrongEnd, err.Error())
		}
		s.mutex.Lock()
		s.shards++
		s.mutex.Unlock()
	}
}

func (s *soak) shareOnce(name string) error {
	p, title := s.TestNodes[name], fmt.Sprintf("shards%d", s.shards)
	defer s.queue.forget(title)
	libraries := "export LD_LIBRARY_PATH=" + p.Sim.Libraries() + "; "
	client := p.Sim.Program("cuda-client") + " spin -ms 20 -for 0.3"
	under := libraries + "srun " + filepath.Join(s.Top, "mpirun-wrap") + " sh -c 'echo under $CUDA_MPS_PIPE_DIRECTORY; exec " + client + "'"
	var ids []int
	for _, job := range []struct{ asks, does string }{
		{"--comment=none", libraries + "srun " + client}, {"--constraint=mps", under}, {"--constraint=mps", under},
	} {
		id, err := s.Submit(s.Ctx, s.User, "-J", title, "-w", name, "-n1", "--gres=shard:1", "-o", filepath.Join(s.folder, "%j.shard"), job.asks, "--wrap", job.does)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := s.sharesEnd(title, len(ids)); err != nil {
		return err
	}
	for i, id := range ids {
		path := filepath.Join(s.folder, fmt.Sprintf("%d.shard", id))
		content, _ := os.ReadFile(path)
		if !strings.Contains(string(content), "done kernels=") {
			return fmt.Errorf("job %d of gres/shard did not compute: %s", id, content)
		}
		if i > 0 && !strings.Contains(string(content), fmt.Sprintf("/run/slurm-mps/jobs/%d/0/pipe\n", id)) {
			s.wrong(sharing, outsideMPS, string(content))
		}
		_ = os.Remove(path)
	}
	s.queue.fresh()
	if state := s.queue.node(name); out(state) {
		s.wrong(sharing, drainOf(state), state)
		return s.Resume(s.Ctx, name)
	}
	if left := p.Leftovers(); len(left) > 0 {
		return fmt.Errorf("left on %s: %q", name, left)
	}
	return nil
}

// sharesEnd waits until this many jobs of a name have ended. At the start of a soak all nodes have jobs at once, and
// two cores take a minute for them.
func (s *soak) sharesEnd(title string, count int) error {
	for deadline := time.Now().Add(jobLimit); time.Now().Before(deadline); wait.Sleep(s.Ctx, lookEvery) {
		jobs, _ := s.queue.of(title)
		over := 0
		for _, j := range jobs {
			if j.Over() || j.Held() {
				over++
			}
		}
		if over == count {
			return nil
		}
	}
	result, _ := s.Run(s.Ctx, lab.Root, "squeue", "--name="+title)
	return fmt.Errorf("jobs of gres/shard do not end: %s", result.Stdout)
}
