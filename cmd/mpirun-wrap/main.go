// SPDX-License-Identifier: Apache-2.0

// Without these two, Go's runtime reads the control group of each rank at its start, for a number of threads.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command mpirun-wrap places one rank on the job's GPUs and becomes its program, under MPS. What it does is in package
// mpirunwrap. Here is only what must be in the program itself: the signals that it was started with.
package main

import (
	"os"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/mpirun-wrap/own"
	"github.com/slurm-mps/slurm-mps/site/cli"
)

func main() {
	p := cli.ThisProcess()
	if code, done := own.Main(p.Args, p.Env); done {
		os.Exit(code)
	}
	os.Exit(mpirunwrap.Wrap(p, &own.Rank{}))
}
