// SPDX-License-Identifier: Apache-2.0

package own_test

import (
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// What --own cannot serve ends with 125 and a sentence, and no rank computes without MPS.
func TestASentenceForEachRefusal(t *testing.T) {
	exclusive := func(n testNode) { must.OK(n.T, n.Sim.Node.GPU(0).SetMode(3)) }
	for _, c := range []struct {
		name    string
		models  []node.Model
		prepare func(testNode)
		env     []string
		want    string
	}{
		{name: "no GPU", models: []node.Model{node.H200}, env: []string{"CUDA_VISIBLE_DEVICES=7"}, want: `cannot find a GPU: no GPU can be opened: CUDA_VISIBLE_DEVICES is "7"`},
		{name: "a GPU for each task", models: []node.Model{node.H200, node.H200},
			env:  append(inStep(7, 0, 0, 2), "SLURM_NTASKS_PER_GPU=1", "SLURM_STEP_GPUS=0", "CUDA_VISIBLE_DEVICES=0"),
			want: "cannot use --own: Slurm gives each task of this step GPUs of its own: ask for --gpus-per-node or --gres=gpu:N in place of --gpus-per-task"},
		{name: "MIG", models: []node.Model{node.H100SXM.Cut(node.H100Slice3)}, want: "is divided into MIG instances, and --own serves whole GPUs"},
		{name: "no control program", models: []node.Model{node.H200}, env: []string{"PATH=/bin"},
			want: "cannot start an MPS daemon: cannot find nvidia-cuda-mps-control on PATH or in /usr/bin"},
		{name: "the daemon does not start", models: []node.Model{node.H200}, prepare: func(n testNode) { n.Fault("dies_at_start", "") },
			want: "this job has no MPS: cannot start "},
		{name: "the server does not start", models: []node.Model{node.H200}, prepare: func(n testNode) { n.Fault("server_dies_at_start", "") },
			want: "this job has no MPS: "},
		{name: "another process has an exclusive GPU", models: []node.Model{node.H200}, prepare: func(n testNode) {
			exclusive(n)
			ready(n.start(nil, n.CudaClient(), "spin", "-for", "60", "-exit-idle"))
		}, want: "this job has no MPS: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newTestNode(t, c.models...)
			if c.prepare != nil {
				c.prepare(n)
			}
			n.start(c.env, n.wrap(n.CudaClient(), "info")...).says(c.want)
			n.Until("clean node", func() bool { return len(n.folders()) == 0 && len(n.daemons()) == 0 })
		})
	}
}

// A node in EXCLUSIVE_PROCESS without a prolog: the daemon takes the GPU, and ranks run under MPS.
func TestExclusiveMode(t *testing.T) {
	n := newTestNode(t, node.H200)
	must.OK(t, n.Sim.Node.GPU(0).SetMode(3))
	all := n.step(7, 0, 4, n.spin("60")...)
	ready(all...)
	lives(all...)
	n.clean()
}

// With the site's prolog the ticket wins, and --report says so. The same script works on both kinds of sites.
func TestTheSitesTicketWins(t *testing.T) {
	n := newTestNode(t, node.H200)
	n.Open(n.Job(7, "0"))
	p := n.start(inStep(7, 0, 0, 1), n.wrap("--report", n.CudaClient(), "info")...)
	ends(0, p)
	if want := "mpirun-wrap: --own starts no daemon: the site's prolog has started one for this job"; !strings.Contains(p.Text(), want) {
		t.Errorf("it prints %s\nwant %s", p.Text(), want)
	}
	quiet := n.start(inStep(7, 0, 0, 1), n.wrap(n.CudaClient(), "info")...)
	ends(0, quiet)
	if strings.Contains(quiet.Text(), "--own") || len(n.of("--own-keep")) > 0 {
		t.Errorf("it prints %s\n%s", quiet.Text(), n.state())
	}
	n.Close(n.Job(7, "0"))
	n.clean()
}
