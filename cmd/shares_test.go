package cmd_test

import (
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// A job that has a part of a GPU, or may have, is refused before any mode is changed. It drains no node, and its epilog finds
// nothing to do.
func TestJobsThatShareAGPUByGres(t *testing.T) {
	for _, c := range []struct {
		name, gres, want string
		extra            []string
	}{
		{"a node with shards", "Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=8\n", "shares its GPUs by gres/shard", nil},
		{"a job of gres/mps", "Name=gpu File=/dev/nvidia[0-1]\nName=mps Count=200\n", "has a part of a GPU by gres/mps", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlay(t, "", node.H200, node.H200)
			p.write(p.gres(), c.gres)
			for id := uint32(7); id <= 8; id++ { // two jobs on one GPU
				job := p.job(id, "0")
				job.Extra = c.extra
				p.must(0, job, "prolog")
				if refused := p.ticket(id).Refused; !strings.Contains(refused, c.want) {
					t.Errorf("job %d is refused for %q", id, refused)
				}
				if modes := p.modes(); modes != "00" {
					t.Errorf("modes %s", modes)
				}
			}
			for id := uint32(7); id <= 8; id++ {
				p.must(0, p.job(id, "0"), "epilog")
			}
			p.clean()
		})
	}
}

// Whole GPUs of a node that has gres/mps as well are a job's as ever.
func TestAWholeGPUBesideGresMPS(t *testing.T) {
	p := newPlay(t, "", node.H200, node.H200)
	p.write(p.gres(), "Name=gpu File=/dev/nvidia[0-1]\nName=mps Count=200\n")
	p.must(0, p.job(7, "0"), "prolog")
	if refused := p.ticket(7).Refused; refused != "" {
		t.Error(refused)
	}
	p.must(0, p.job(7, "0"), "epilog")
	p.clean()
}
