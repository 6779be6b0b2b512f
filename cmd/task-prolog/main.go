// SPDX-License-Identifier: Apache-2.0

// Command task-prolog is slurmd's TaskProlog=. It places ranks that run without mpirun-wrap. What it does is in package
// mpirunwrap.
package main

import (
	"os"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site/cli"
)

func main() { os.Exit(mpirunwrap.TaskProlog(cli.ThisProcess())) }
