// SPDX-License-Identifier: Apache-2.0

// Command shared tries jobs that share one GPU by gres/mps: what they compute, and what one job's end does to the other
// (trial.py). It needs the programs of make gpu-room-pack. On a machine with a GPU the compute mode stays unchanged; without
// one, the GPU is a simulated H200.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

func main() {
	results := flag.String("results", "", "folder of the results")
	pattern := flag.String("trials", "", "pattern for the names of trials")
	flag.Parse()
	if err := run(*results, *pattern); err != nil {
		fmt.Fprintf(os.Stderr, "shared: %v\n", err)
		os.Exit(1)
	}
}

func run(results, pattern string) (err error) {
	if results == "" || flag.NArg() > 0 {
		return errors.New("cannot try: give -results FOLDER, and no other arguments")
	}
	if results, err = filepath.Abs(results); err != nil {
		return err
	}
	built, err := testnode.Built()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/tmp", "share")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	kind, n, err := newNode(filepath.Join(dir, "n"), built)
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.MkdirAll(results, 0o755)); err != nil {
		return err
	}
	cmd := exec.Command("python3", script(built), "run", n.Root, n.Bin, filepath.Join(built, "sim", "bin", "cuda-client"), results, kind, pattern)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if n.Sim != nil {
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+n.Sim.Libraries())
	}
	err = cmd.Run()
	left, wrong := n.Left()
	if len(left) > 0 {
		wrong = errors.Join(wrong, fmt.Errorf("left behind: %q", left))
	}
	return errors.Join(err, wrong)
}

// newNode returns a node with one GPU, and the kind of its ranks.
func newNode(dir, built string) (kind string, n testnode.Node, err error) {
	policy := testnode.Default(testnode.Unchanged)
	if testnode.RealGPUs() == 0 {
		n, err = testnode.New(dir, built, policy, node.H200)
		return "driver", n, err
	}
	n, err = testnode.Real(dir, built, policy)
	return "torch", n, err
}

// script returns the path of trial.py in the pack, or in the source.
func script(built string) string {
	if packed := filepath.Join(built, "ends", "trial.py"); exists(packed) {
		return packed
	}
	return filepath.Join(built, "..", "site", "lab", "shared", "trial.py")
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
