// SPDX-License-Identifier: Apache-2.0

package own_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// What --own cannot serve ends with 125 and a sentence, and no rank computes without MPS.
func TestASentenceForEachRefusal(t *testing.T) {
	exclusive := func(n testNode) {
		if err := n.Sim.Node.GPU(0).SetMode(3); err != nil {
			n.T.Fatal(err)
		}
	}
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
	if err := n.Sim.Node.GPU(0).SetMode(3); err != nil {
		t.Fatal(err)
	}
	all := n.step(7, 0, 4, n.spin("60")...)
	ready(all...)
	lives(all...)
	n.clean()
}

// The 49th client of a GPU is refused: with a launcher by a sentence, and otherwise by CUDA's error.
func TestTooManyClients(t *testing.T) {
	n := newTestNode(t, node.H200)
	n.start(inStep(7, 0, 0, 49), n.wrap(n.CudaClient(), "info")...).says("48")
	n.clean()
	var all []*process
	for range 48 {
		all = append(all, n.start(nil, n.spin("600")...))
	}
	ready(all...)
	last := n.start(nil, n.spin("600")...)
	if last.end() == 0 || !strings.Contains(last.Text(), "err=") {
		t.Errorf("the 49th client prints %s", last.Text())
	}
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
	n.Must(0, n.Job(7, "0"), "epilog")
	n.Clean()
	n.clean()
}

// Flags and variables of the wrapper work as with the prolog.
func TestOptions(t *testing.T) {
	n := newTestNode(t, node.H200, node.H200)
	for _, c := range []struct {
		flags string
		ranks int
		want  []string // in what the ranks print, in the order of the ranks
	}{
		{"--share=even --gpu=block", 3, []string{"sm=66 ", "sm=66 ", "sm=132 "}},
		{"--share=25% --gpu=cyclic", 2, []string{"sm=32 ", "sm=32 "}},
		{"--share=3:1", 4, []string{"sm=100 ", "sm=100 ", "sm=32 ", "sm=32 "}},
		{"--mem=8G", 1, []string{"free=8271MiB"}},
		{"--share=none --gpu=all", 2, []string{"ndev=2", "ndev=2"}},
	} {
		t.Run(c.flags, func(t *testing.T) {
			all := n.step(7, 0, c.ranks, n.wrap(append(strings.Fields(c.flags), n.CudaClient(), "info")...)...)
			ends(0, all...)
			for i, p := range all {
				if !strings.Contains(p.Text(), c.want[i]) {
					t.Errorf("rank %d prints %s, want %q", i, p.Text(), c.want[i])
				}
			}
		})
	}
	n.clean()
}

// mps-tune finds the fastest shares of ranks under --own.
func TestTune(t *testing.T) {
	n := newTestNode(t, node.H200)
	path := filepath.Join(n.home, "program")
	if err := node.WriteProgram(path, []byte("#!/bin/sh\ncase $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in 50*) echo rate 9;; *) echo rate 3;; esac\n")); err != nil {
		t.Fatal(err)
	}
	wrapper := strings.Join(n.Command("mpirun-wrap", "--local-size=4"), " ")
	four := fmt.Sprintf("for i in 0 1 2 3; do %s --local-rank=$i %s & done; wait", wrapper, path)
	line := n.Command("mps-tune", "--repeats=2", "--share=none,even,overlap:2", "--rate", "rate ([0-9.]+)", "--", "sh", "-c", four)
	p := n.start([]string{"SLURM_MPS_OWN=1"}, line...)
	ends(0, p)
	if want := "\nbest: overlap:2: the site's own share"; !strings.Contains(p.Text(), want) || !strings.Contains(p.Text(), "overlap:2") {
		t.Errorf("it prints %s", p.Text())
	}
	n.clean()
}
