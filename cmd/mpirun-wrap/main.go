// SPDX-License-Identifier: Apache-2.0

// Command mpirun-wrap places one rank on the job's GPUs and becomes its program, under MPS. Its command line is in
// mpirun-wrap/wrap, and what it does in mpirun-wrap. Here is only what must be in the program itself: the signals that
// it was started with.
package main

import (
	"os"

	"github.com/slurm-mps/slurm-mps/mpirun-wrap/own"
	"github.com/slurm-mps/slurm-mps/mpirun-wrap/wrap"
	"github.com/slurm-mps/slurm-mps/site/cli"
)

func main() {
	p := cli.ThisProcess()
	if code, done := own.Main(p.Args, p.Env); done {
		os.Exit(code)
	}
	os.Exit(wrap.Wrap(p, &own.Rank{Err: p.Err}))
}
